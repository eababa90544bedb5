"""A Report -> one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from astitch.profiling.report import Report
from astitch.profiling.terminal import render_text


def render_page(report: Report) -> str:
    """The whole page."""
    text = escape(render_text(report, kernels=1000))
    title = escape(report.target)
    return f"<!doctype html><meta charset='utf-8'><title>{title}</title><pre>{text}</pre>"


def render_frame(report: Report) -> str:
    """The page in a frame of its own."""
    return f'<iframe srcdoc="{escape(render_page(report))}" width="100%" height="900"></iframe>'
