"""Callables that are methods where a class has them.

Takes a rule that makes the callable of an instance, which each instance gets once and keeps as long as it lives.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any


class Method:
    """What a class's attribute gives for its instances.  The callable of an instance must not keep it alive."""

    def __init__(self) -> None:
        self._bound: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()
        self._binding = threading.RLock()

    def bind(self, instance: object, owner: type | None) -> Any:
        """The same for one instance."""
        raise NotImplementedError

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds the function to an instance, as methods are bound."""
        if instance is None:
            return self
        with self._binding:
            if instance not in self._bound:
                self._bound[instance] = self.bind(instance, owner)
            return self._bound[instance]
