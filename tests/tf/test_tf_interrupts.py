"""Signals while TensorFlow runs callbacks of astitch: no crash, no wrong value, none swallowed, none refused for good.

In processes of their own: what they show without the guard is a segmentation fault.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("tensorflow")

from tf_addon.shim_build import open_library

LIMIT_S = 240
"""The processes take some seconds; a busy machine takes longer to load TensorFlow."""

HEAD = (
    f"""
import faulthandler
faulthandler.dump_traceback_later({LIMIT_S - 20}, exit=True)  # says where it waits
"""
    + """
import importlib, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import numpy as np
import tensorflow as tf
import tf_addon
from tf_addon import programs

COMPILES = {"shim": "tf_addon.programs", "python": "tf_addon.python_tier"}
arrays = [np.random.default_rng(n).normal(size=30_000).astype("f") for n in range(16)]
tensors = [tf.constant(array) for array in arrays]

def is_right(result, number):
    return np.array_equal(result, np.sort(arrays[number]) * 2 + 1)

def run_while_signals_come(call, calls=60):
    '''How many calls were right, wrong, interrupted, and raised something else.  One signal comes in each.'''
    start = time.monotonic()
    call(tensors[0])
    usual = time.monotonic() - start
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    counts = [0, 0, 0, 0]
    for turn in range(calls):
        number = turn % len(arrays)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + usual * turn / calls)
                result = call(tensors[number]).numpy()
                outcome = 0 if is_right(result, number) else 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            outcome = 2
        except Exception as error:
            outcome = 3
            print(type(error), error)
        counts[outcome] += 1
    return counts

def signal_inside(module, name, number):
    '''Has the next call of a function begin with a signal.'''
    whole = getattr(module, name)
    def signalled(*args, **kwargs):
        setattr(module, name, whole)
        signal.raise_signal(number)
        return whole(*args, **kwargs)
    setattr(module, name, signalled)

class Late(Exception):
    pass

def raise_late(*_):
    raise Late

def catch(call, *kinds):
    try:
        call()
    except kinds as error:
        return type(error).__name__
    return "nothing raised"
"""
)


def run(script: str) -> subprocess.CompletedProcess[str]:
    open_library()  # built here, where that may take its time
    text = textwrap.dedent(HEAD) + textwrap.dedent(script)
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
    )


def test_signals_while_the_shim_runs_and_compiles() -> None:
    """Without the guard: most results are wrong, then a segmentation fault."""
    done = run("""
        tf_addon.enable(engine="host")

        @tf.function(jit_compile=True)
        def order(x):
            return tf.sort(x) * 2 + 1

        assert is_right(order(tensors[0]), 0)
        right, wrong, interrupted, others = run_while_signals_come(order)
        assert wrong == others == 0 and interrupted > 5, (right, wrong, interrupted, others)
        assert all(is_right(order(tensor), n) for n, tensor in enumerate(tensors))
        tf_addon.report(reset=True)

        # A compilation that is interrupted is one that has not been.
        signal.signal(signal.SIGUSR1, raise_late)
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(3))
        for size, (sent, raised) in enumerate([
            (signal.SIGINT, "KeyboardInterrupt"),
            (signal.SIGUSR1, "Late"),
            (signal.SIGUSR2, "SystemExit"),
        ]):
            x = tf.range(10.0 + size)
            signal_inside(programs, "compile_module", sent)
            assert catch(lambda: order(x), KeyboardInterrupt, Late, SystemExit) == raised, raised
            assert np.array_equal(order(x), x * 2 + 1)
        found = tf_addon.report(reset=True)
        assert found.runs == found.compiles == 3 and found.fallbacks == 0, str(found)
        assert not any(function.refused for function in found.functions)

        # Who waited for it makes it.  A function of its own: a signal that comes while TensorFlow's Python holds the
        # lock of a tf.function leaves it held, for every thread but this one.
        shared = tf.function(lambda x: tf.sort(x) * 2 + 1, jit_compile=True)
        x = tf.range(20.0)
        found = []
        other = threading.Thread(target=lambda: found.append(shared(x).numpy()))
        whole = programs.compile_module
        def slow(*args, **kwargs):
            programs.compile_module = whole
            other.start()
            time.sleep(0.3)
            signal.raise_signal(signal.SIGINT)
        programs.compile_module = slow
        assert catch(lambda: shared(x), KeyboardInterrupt) == "KeyboardInterrupt"
        other.join()
        assert np.array_equal(found[0], x * 2 + 1)
        assert tf_addon.report().fallbacks == 0
        print("all done")
    """)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.endswith("all done\n"), done.stdout
    assert "Exception ignored on calling" not in done.stderr


@pytest.mark.parametrize("tier", ["shim", "python"])
def test_sigterm_with_sys_exit_ends_the_program(tier: str) -> None:
    """Without the guard it is swallowed, whenever it comes while astitch runs."""
    done = run(f"""
        @tf_addon.function(tier="{tier}")
        def order(x):
            return tf.sort(x) * 2 + 1

        with tf_addon.enabled(engine="host"):
            assert is_right(order(tensors[0]), 0)
        from astitch.library import xla_fallback
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        right, wrong, interrupted, others = run_while_signals_come(order)
        assert wrong == others == 0 and interrupted > 5, (right, wrong, interrupted, others)
        # A compilation that is interrupted, also by what is an Exception, is one that has not been.
        signal.signal(signal.SIGUSR1, raise_late)
        x = tf.range(30.0)
        with tf_addon.enabled(engine="host"):
            signal_inside(importlib.import_module(COMPILES["{tier}"]), "compile_module", signal.SIGUSR1)
            assert catch(lambda: order(x), Late) == "Late"
            assert np.array_equal(order(x), x * 2 + 1)
        assert "Late" not in str(tf_addon.report())
        signal_inside(xla_fallback.FallbackSubgraph, "run", signal.SIGTERM)
        order(tensors[1])
        print("swallowed")
    """)
    assert done.returncode == 7, (done.returncode, done.stdout, done.stderr)
    assert "swallowed" not in done.stdout
