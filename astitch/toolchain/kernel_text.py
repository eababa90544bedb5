"""CUDA text -> the same text for all kernels that differ in names only.

The layers of a model give kernels whose text names other ops of the HLO and does the same.  Two texts of equal form
become each other by renaming what they declare, so that one cubin serves both.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from astitch.toolchain.nvrtc import read_headers

_TOKEN = re.compile(
    r'(?P<skip>//[^\n]*|/\*.*?\*/)|(?P<line>^[ \t]*\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')'
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<word>[A-Za-z_]\w*)|(?P<space>\s+)|(?P<sign>->|::|.)",
    re.MULTILINE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ENTRY = re.compile(
    r"__global__\s+void\s+(?:__cluster_dims__\s*\([^)]*\)\s*)?"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?([A-Za-z_]\w*)\s*\("
)

_SHARED = re.compile(r"\bASTITCH_SHARED\s*\([^,()]*,\s*([A-Za-z_]\w*)\s*,")
"""A declaration by a macro of the headers."""

_NEVER = frozenset(
    """
    alignas alignof asm auto bool break case catch char class const constexpr continue decltype default delete do double
    else enum explicit extern false float for friend goto if inline int long mutable namespace new noexcept nullptr
    operator private protected public register reinterpret_cast return short signed sizeof static static_cast struct
    switch template this throw true try typedef typename union unsigned using virtual void volatile while
    threadIdx blockIdx blockDim gridDim warpSize
    """.split()
)
"""Words of the language and of CUDA, which no kernel declares."""

_MEMBER = (".", "->", "::")
_NO_TYPE = frozenset("return else case goto throw new delete sizeof".split())


SYMBOL_DIGITS = 32
"""So many that the kernel's own name has room in a cubin, where it is written over the form's (name_entry)."""


@dataclass(frozen=True, slots=True)
class SharedText:
    """form: equal for texts that differ only in names and comments.  source: the text to compile, its entries named by
    the form.  symbols: the names of the entries there, by those in the original."""

    form: str
    source: str
    symbols: Mapping[str, str]


@functools.cache
def _known_words() -> frozenset[str]:
    """Names of the language, of CUDA and of the headers."""
    return _NEVER.union(
        m[0]
        for text in read_headers().values()
        for m in _TOKEN.finditer(text)
        if m.lastgroup == "word" or m.lastgroup == "line"
        for m in _WORD.finditer(m[0])
    )


@functools.lru_cache(maxsize=256)
def share_text(source: str) -> SharedText:
    """The form of a translation unit, and its text under names that all of the same form have."""
    form = _form_of(source)
    code = hashlib.sha256(form.encode()).hexdigest()[:SYMBOL_DIGITS]
    entries = list(dict.fromkeys(_ENTRY.findall(source)))
    names = {
        name: f"stitch_{code}" + (f"_{number}" if number else "")
        for number, name in enumerate(entries)
    }
    renamed = source
    for name, symbol in names.items():
        # What belongs to an entry begins with its name: its barrier words, where the module holds them.
        renamed = re.sub(rf"\b{name}(?=(?:_words)?\b)", symbol, renamed)
    return SharedText(form, renamed, names)


def _form_of(source: str) -> str:
    """The text without comments, with everything that it declares numbered in the order of appearance.

    A name that the headers or the language know, or that is used as a member, stays as it is.
    """
    tokens = [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(source) if m.lastgroup != "skip"]
    words = [(kind, text) for kind, text in tokens if kind != "space"]
    entries = frozenset(_ENTRY.findall(source))
    declared = set(_SHARED.findall(source))
    members: set[str] = set()
    around = zip([("", ""), *words], words, [*words[1:], ("", "")], strict=False)
    for (before_kind, before), (kind, text), (_, after) in around:
        if kind != "word":
            continue
        if before in _MEMBER:
            members.add(text)
        elif after in ("=", ";", ",", ")", "[", "(", "{", ":"):
            typed = before_kind == "word" and before not in _NO_TYPE
            if typed or before in ("*", "&", ">") or text in entries:
                declared.add(text)
    declared -= members | _known_words()
    declared = {name for name in declared if not name.startswith("__")}
    numbers: dict[str, str] = {}
    parts = []
    for kind, text in words:
        if kind == "word" and text in declared:
            text = numbers.setdefault(text, f"@{len(numbers)}")
        parts.append(text)
    return "\n".join(parts)
