"""SavedModels through astitch, with the programs that `astitch-export` left beside them.

Takes a SavedModel's folder, hands on its signatures as compiled functions.  Programs and kernels lie in the folder that
TensorFlow leaves to others, `assets.extra`, as a cache that is only read.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from astitch import options
from tf_addon.functions import function

log = logging.getLogger("tf_addon")


def programs_folder(model: Path) -> Path:
    """Where the programs of a SavedModel are kept: a folder of caches."""
    return model / "assets.extra" / "astitch"


def share_programs(model: Path) -> bool:
    """From now on this process finds the programs of a SavedModel.  Are there any?"""
    folder = programs_folder(model)
    if not folder.is_dir():
        return False
    options.share_cache(folder)
    return True


class Signatures(Mapping[str, Callable[..., Any]]):
    """A SavedModel's signatures by name, each a function of keyword arguments that runs through astitch.

    model: what TensorFlow loaded.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._functions = {name: _compile(model, name) for name in model.signatures}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


_numbers = itertools.count()


def _compile(model: Any, name: str) -> Callable[..., Any]:
    def call(**inputs: Any) -> Any:
        return model.signatures[name](**inputs)

    call.__name__ = call.__qualname__ = name
    # TensorFlow warns of one code that is traced again and again, and codes of equal content are one.
    call.__code__ = call.__code__.replace(co_name=f"{name}.{next(_numbers)}")
    compiled: Callable[..., Any] = function(call)
    return compiled


def load(folder: str | Path) -> Signatures:
    """The signatures of a SavedModel, compiled also where they were not saved so, as Keras' `model.export` does not.

    `astitch-export FOLDER` leaves programs beside the model; then this process neither plans nor compiles kernels for
    the shapes that were exported.  Raises what tf.saved_model.load and @tf_addon.function raise.
    """
    import tensorflow as tf

    if not share_programs(Path(folder)):
        log.info("%s has no programs of astitch's: astitch-export %s makes them", folder, folder)
    return Signatures(tf.saved_model.load(str(folder)))
