"""The models of the benchmark: what they compute, that astitch and XLA agree on them, and how the command measures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from astitch.profiling import kernel_trace
from astitch.profiling.kernel_trace import COPY, MEMORY, PRODUCT, Launch, classify_kernel
from benchmarks import kernels, models
from benchmarks.models import Entry, ModelRow
from benchmarks.results import Run
from benchmarks.workloads import WORKLOADS, adam, asr, bert, crnn, dien, transformer
from benchmarks.workloads.layers import Parameters

KERNEL_NAMES = Path(__file__).parents[1] / "data" / "kernel_names.txt"
RUN = Run("2026-01-01", "a GPU", "1.2", {"jax": "1"}, 3000.0, 5000.0, 60000.0)
pytestmark = pytest.mark.usefixtures("host_engine")

TINY = models.list_entries("tiny")

STEPS = 6
"""Training steps that are compared: some 10 s for a workload, with compiling."""


def name_entry(entry: Entry) -> str:
    return entry.key


# ---- the ten entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", TINY, ids=name_entry)
def test_astitch_agrees_with_xla(entry: Entry) -> None:
    """Outputs; in training the losses of steps and the gradients of the first.  The command compares 20 steps."""
    options = models.make_parser().parse_args(["--check", "--steps", str(STEPS)])
    row = models.measure_entry(entry, options, "")
    assert row.notes == {}
    assert models.is_right(row), row
    assert len(row.loss_errors) == (STEPS if entry.mode == "train" else 0)
    if entry.mode == "train":
        assert row.gradient_error is not None
        assert row.gradient_error < 1e-4


FULL = [entry for entry in models.list_entries("full") if entry.size == "full"]

WEIGHTS = {  # of the full sizes: what the papers' own counts come to, in millions
    "bert": (38, 40),
    "transformer": (29, 31),
    "crnn": (8, 9),
    "asr": (14, 16),
    "dien": (1.1, 1.3),
}


@pytest.mark.parametrize("entry", FULL, ids=name_entry)
def test_full_size_traces(entry: Entry) -> None:
    module, size = entry.module, entry.module.SIZES["full"]
    parameters, batch = module.make_parameters(1, size), module.make_batch(2, size)
    leaves = jax.tree.leaves((parameters, batch))
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32), np.dtype(np.int32)}
    if entry.mode == "infer":
        count = sum(leaf.size for leaf in jax.tree.leaves(parameters.weights)) / 1e6
        least, most = WEIGHTS[entry.workload]
        assert least < count < most
        outputs = jax.tree.leaves(jax.eval_shape(module.infer, parameters, batch))
        wanted = {
            "bert": [(8, 128, 768), (8, 2)],
            "transformer": [(16, 64, 30000)],
            "crnn": [(26, 64, 37)],
            "asr": [(32, 8, 46)],
            "dien": [(256, 2)],
        }
        assert [out.shape for out in outputs] == wanted[entry.workload]
    else:
        state = adam.start_training(parameters)
        after, loss = jax.eval_shape(module.train_step, state, batch)
        assert loss.shape == ()
        before = jax.eval_shape(lambda state: state, state)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), after) == jax.tree.map(
            lambda a: (a.shape, a.dtype), before
        )


@pytest.mark.parametrize("name", WORKLOADS)
def test_arguments_depend_on_the_key_alone(name: str) -> None:
    module = WORKLOADS[name]
    size = module.SIZES["tiny"]

    def draw(key: int) -> list[Any]:
        return jax.tree.leaves((module.make_parameters(key, size), module.make_batch(key, size)))

    first, again, other = draw(1), draw(1), draw(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


# ---- batches are such as the models are trained on -----------------------------------------------------------------


def test_bert_batch_masks_words_within_the_length() -> None:
    size = bert.SIZES["full"]
    batch = bert.make_batch(3, size)
    assert batch["masked"].shape == (8, 20)
    assert (batch["masked"] < batch["lengths"][:, None]).all()
    assert all(len(set(row)) == 20 for row in batch["masked"].tolist())
    assert (np.take_along_axis(batch["words"], batch["masked"], 1) == bert.MASK).all()
    assert (batch["words"] == bert.MASK).sum() == 8 * 20
    assert (batch["labels"] >= bert.SPECIAL).all()
    assert (batch["labels"] < size.vocabulary).all()
    for row, length in zip(batch["words"], batch["lengths"], strict=True):
        assert (row[0], row[length - 1]) == (bert.CLS, bert.SEP)
        assert (row[length:] == 0).all()


def test_ctc_labels_fit_into_the_columns() -> None:
    size = crnn.SIZES["full"]
    batch = crnn.make_batch(3, size)
    labels, lengths = batch["labels"], batch["lengths"]
    repeats = ((labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] > 0)).sum(1)
    assert (lengths + repeats <= 26).all()
    assert lengths.min() >= 3
    assert lengths.max() == 12
    assert ((labels > 0) == (np.arange(12) < lengths[:, None])).all()
    assert labels.max() < size.classes


@pytest.mark.parametrize(
    ("batch", "name", "start", "end"),
    [
        (transformer.make_batch(3, transformer.SIZES["full"]), "target", transformer.START, transformer.END),
        (asr.make_batch(3, asr.SIZES["full"]), "characters", asr.START, asr.END),
    ],
    ids=["transformer", "asr"],
)  # fmt: skip
def test_a_target_ends_and_is_given_shifted(
    batch: dict[str, Any], name: str, start: int, end: int
) -> None:
    target, shifted = batch[name], batch["shifted"]
    assert (shifted[:, 0] == start).all()
    assert (shifted[:, 1:] == target[:, :-1]).all()
    assert ((target == end).sum(1) == 1).all()
    ends = (target == end).argmax(1)
    assert ((target > 0) == (np.arange(target.shape[1]) <= ends[:, None])).all()


def test_dien_histories_vary_in_length() -> None:
    batch = dien.make_batch(3, dien.SIZES["full"])
    lengths = batch["lengths"]
    assert (lengths.min(), lengths.max()) >= (10, 100)
    assert len(set(lengths.tolist())) > 40
    assert (batch["items"][np.arange(100) >= lengths[:, None]] == 0).all()
    assert set(batch["clicked"].tolist()) == {0, 1}


# ---- the models compute what their papers say ----------------------------------------------------------------------


def test_ctc_loss_sums_over_all_alignments() -> None:
    """Against every path of 4 steps: repeated letters need a blank between them."""
    rng = np.random.default_rng(0)
    time, classes = 4, 3
    logits = rng.standard_normal((time, 3, classes)).astype(np.float32)
    labels = np.array([[1, 2], [1, 1], [2, 0]], np.int32)
    lengths = np.array([2, 2, 1], np.int32)
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))
    wanted = []
    for row, (word, length) in enumerate(zip(labels, lengths, strict=True)):
        total = 0.0
        for path in itertools.product(range(classes), repeat=time):
            letters = [k for k, _ in itertools.groupby(path) if k]
            if letters == list(word[:length]):
                total += np.exp(sum(log_probabilities[t, row, k] for t, k in enumerate(path)))
        wanted.append(-np.log(total))
    got = jax.jit(crnn.ctc_loss)(log_probabilities, labels, lengths)
    np.testing.assert_allclose(got, np.mean(wanted), rtol=1e-5)


def test_adam_decays_weights_but_no_biases_and_clips() -> None:
    recipe = adam.Recipe(lambda time: 0.1, epsilon=0.0, decay=0.5, most_norm=1.0)
    weights = {"kernel": np.array([2.0, -4.0], np.float32), "bias": np.array([1.0], np.float32)}
    state = adam.start_training(Parameters(weights, {}))
    gradients = {"kernel": np.array([3, -4], np.float32), "bias": np.array([12], np.float32)}
    after = jax.jit(lambda s, g: adam.take_step(recipe, s, g, {}))(state, gradients)
    # The first step of Adam goes by the rate, whatever the gradient's size.
    np.testing.assert_allclose(
        after.parameters.weights["kernel"], [2 - 0.1 - 0.1, -4 + 0.1 + 0.2], 1e-5
    )
    np.testing.assert_allclose(after.parameters.weights["bias"], [0.9], 1e-5)
    np.testing.assert_allclose(after.mean["kernel"], 0.1 * np.array([3, -4]) / 13, 1e-5)
    assert int(after.step) == 1


def test_attention_opens_the_gate_of_the_augru() -> None:
    size = dien.SIZES["tiny"]
    weights = dien.make_parameters(1, size).weights["evolution"]
    x = np.random.default_rng(0).standard_normal((5, 2, size.width)).astype(np.float32)
    within = np.ones((5, 2), np.float32)
    within[3:, 1] = 0.0
    run = jax.jit(dien.run_gru)
    closed = run(weights, x, within, np.zeros((5, 2), np.float32))
    opened = np.asarray(run(weights, x, within, np.ones((5, 2), np.float32)))
    np.testing.assert_array_equal(closed, np.zeros_like(closed))
    np.testing.assert_allclose(opened, run(weights, x, within), 1e-6)
    np.testing.assert_array_equal(opened[3:, 1], np.broadcast_to(opened[2, 1], (2, size.width)))
    assert np.abs(opened[4, 0] - opened[3, 0]).max() > 0.01


def test_a_word_depends_on_none_behind_it() -> None:
    size = transformer.SIZES["tiny"]
    parameters, batch = transformer.make_parameters(1, size), transformer.make_batch(2, size)
    other = {**batch, "shifted": batch["shifted"].copy()}
    other["shifted"][:, 4] = (other["shifted"][:, 4] + 1) % size.vocabulary
    infer = jax.jit(transformer.infer)
    got, want = (np.asarray(infer(parameters, b)) for b in (other, batch))
    np.testing.assert_array_equal(got[:, :4], want[:, :4])
    assert np.abs(got[:, 4:] - want[:, 4:]).max() > 1e-3


def test_padding_changes_nothing() -> None:
    size = bert.SIZES["tiny"]
    parameters, batch = bert.make_parameters(1, size), bert.make_batch(2, size)
    row = int(batch["lengths"].argmin())
    length = int(batch["lengths"][row])
    assert length < size.length
    other = {**batch, "words": batch["words"].copy()}
    other["words"][row, length:] = 7
    infer = jax.jit(bert.infer)
    got, want = (np.asarray(infer(parameters, b)[0]) for b in (other, batch))
    np.testing.assert_array_equal(got[row, :length], want[row, :length])
    assert np.abs(got[row, length:] - want[row, length:]).max() > 1e-3


# ---- classes of kernels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", KERNEL_NAMES.read_text().splitlines())
def test_a_name_tells_the_class(line: str) -> None:
    kind, name = line.split(maxsplit=1)
    assert classify_kernel(name) == kind


TRACE = """
planes { name: "/device:GPU:0"
  lines { name: "Stream #13(Compute,MemcpyD2D)"
    events { metadata_id: 1 duration_ps: 2000000 } events { metadata_id: 1 duration_ps: 4000000 }
    events { metadata_id: 2 duration_ps: 1000000 } }
  lines { name: "Stream #14(Compute)" events { metadata_id: 3 duration_ps: 5000000 } }
  lines { name: "XLA Ops" events { metadata_id: 1 duration_ps: 9000000 } }
  event_metadata { key: 1 value { id: 1 name: "loop_add_fusion" } }
  event_metadata { key: 2 value { id: 2 name: "MemcpyD2D" } }
  event_metadata { key: 3 value { id: 3 name: "nvjet_tst_128x64" } } }
planes { name: "/host:CPU" lines { name: "Stream" events { metadata_id: 1 duration_ps: 7000000 } }
  event_metadata { key: 1 value { id: 1 name: "nvjet" } } }
"""


def test_a_trace_is_summed_by_class() -> None:
    profile = jax.profiler.ProfileData.from_text_proto(TRACE)
    times = kernel_trace.sum_launches(kernel_trace.read_launches(profile), calls=2)
    assert times.us == {MEMORY: 3.0, PRODUCT: 2.5, COPY: 0.5}
    assert times.count == {MEMORY: 1.0, PRODUCT: 0.5, COPY: 0.5}
    assert list(times.slowest) == ["loop_add_fusion", "nvjet_tst_128x64", "MemcpyD2D"]
    assert times.total_us == 6.0


def test_a_trace_without_kernels_is_an_error() -> None:
    """On a machine without a GPU the profiler runs, and records none."""
    with pytest.raises(kernel_trace.NothingRecorded, match="saw no kernel"):
        kernel_trace.record_kernels(lambda calls: None, 1)


# ---- the command ---------------------------------------------------------------------------------------------------


def record_instead(issue: Any, calls: int) -> kernel_trace.KernelTimes:
    issue(calls)
    return kernel_trace.sum_launches([Launch("fusion", 3.0), Launch("nvjet", 2.0)], 1)


def test_command_measures_saves_resumes_and_reports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "describe_machine", lambda: RUN)
    monkeypatch.setattr(models, "record_kernels", record_instead)
    file = tmp_path / "models.json"
    command = ["asr/infer", "--size", "tiny", "--batches", "1", "--json", str(file)]
    models.main(command)
    (row,) = models.load_rows(file)[1].values()
    assert row.notes == {}
    both = set(models.SIDES)
    for values in (row.wall_us, row.host_us, row.queued_us, row.compile_s, row.planned_bytes):
        assert set(values) == both
        assert all(value > 0 for value in values.values())
    assert row.kernels["astitch"] == {MEMORY: 1.0, PRODUCT: 1.0, COPY: 0.0}
    assert row.program["steps"]["KernelStep"] > 0
    assert set(row.program) == {"steps", "barriers", "outside"}
    assert row.over_xla(models.memory_us) == 1.0
    capsys.readouterr()
    models.main([*command, "--resume"])
    assert "0 entries in" in capsys.readouterr().out
    models.main([*command, "--seconds", "0"])
    assert "1 entries were not started" in capsys.readouterr().out
    models.main(["--report", str(file)])
    assert "asr/infer/tiny" in capsys.readouterr().out


def test_a_side_that_fails_is_a_note_and_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = models.prepare_side

    def refuse(name: str, *arguments: Any, **options: Any) -> models.Side:
        if name == "astitch":
            raise RuntimeError("no such thing")
        return prepare(name, *arguments, **options)

    monkeypatch.setattr(models, "prepare_side", refuse)
    options = models.make_parser().parse_args(["--batches", "1"])
    monkeypatch.setattr(models, "record_kernels", record_instead)
    row = models.measure_entry(Entry("dien", "infer", "tiny"), options, "")
    assert row.notes == {"astitch": "RuntimeError: no such thing"}
    assert set(row.wall_us) == {"xla"}
    assert not models.is_right(row)
    assert row.over_xla(models.wall_us) is None


def test_check_names_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(entry: Entry, options: Any, date: str) -> ModelRow:
        error = 1e-6 if entry.mode == "infer" else 0.5
        return ModelRow(entry.workload, entry.mode, entry.size, date, output_error=error)

    monkeypatch.setattr(models, "measure_entry", measure)
    models.main(["infer", "--size", "tiny", "--check"])
    assert "bert/infer/tiny: largest error 1.0e-06" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"differ or fail: asr/train/tiny$"):
        models.main(["asr", "--size", "tiny", "--check"])


def test_entries_are_the_ten_and_two_more() -> None:
    assert len(models.list_entries("tiny")) == 10
    keys = [entry.key for entry in models.list_entries("full")]
    assert len(keys) == 12
    assert keys[-2:] == ["bert/infer/12-layers-batch-1", "bert/infer/12-layers-batch-32"]
    assert [e.key for e in models.choose_entries(["crnn/t"], "full")] == ["crnn/train/full"]
    with pytest.raises(SystemExit):
        models.main(["no such entry"])


def test_means_are_of_what_both_sides_have() -> None:
    def row(workload: str, mode: str, xla: float, **more: Any) -> ModelRow:
        times = {"xla": xla, "astitch": 10.0}
        return ModelRow(workload, mode, "full", "now", wall_us=times, **more)

    rows = [
        row("bert", "infer", 20.0, output_error=1e-6),
        row("bert", "train", 80.0, loss_errors=[1e-6, 0.1]),
        ModelRow("asr", "infer", "full", "now", notes={"astitch": "Fault: no"}),
    ]
    lines = models.format_means(rows)
    assert lines[1].startswith("full all (3)")
    assert "4.000 (2)" in lines[1]
    assert "2.000 (1)" in lines[2]
    assert "8.000 (1)" in lines[3]
    assert lines[-1] == "  bert/train/full: 1.0e-01"
    assert "    astitch: Fault: no" in models.format_row(rows[2])
    loops = row("dien", "infer", 20.0, program={"outside": {"while": 2, "sort": 1}})
    assert "    outside of astitch's kernels: 2 while, 1 sort" in models.format_row(loops)
    assert "1e-01*" in models.format_row(rows[1])


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"schema": 1}))
    with pytest.raises(ValueError, match="holds no results"):
        models.load_rows(file)
