"""What makes a figure doubtful stands next to it: in table, grid, on the terminal and in JSON."""

from html import unescape

import pytest

from bench.report import document, report, terminal
from bench.report.analysis.comparability import cautions
from bench.report.analysis.doubts import DOUBTS
from bench.report.analysis.lead import grid, other_types_sentence
from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.results.records import Operations, TrialResult
from tests.report.builders import RunBuilder, capped, text_of, timed
from tests.report.fleet import edit_rows, edit_run


def trained(run):
    run.speed()
    for name in ("fp32", "amp-bf16"):
        run.train(name, [90.0])
    return run


def partial(run):
    run.speed()
    edit_run(run.folder, lambda info: info.update(finished=None))
    return run


def strayed(run, of_reference="bfloat16:90% float32:10%", of_arm="bfloat16:100%"):
    """Three processes in which the reference and amp-bf16 multiplied in these types.

    They are those of a known module.
    """
    results = []
    for name, types, speed in (
        (run.reference, of_reference, timed(10.0, 128)),
        ("amp-bf16", of_arm, timed(5.0, 128, speedup=2.0)),
    ):
        operations = Operations(compute_dtypes=types, other_modules="middle")
        result = TrialResult(arm=name, status="ok", operations=operations, row=speed)
        results.append(result)
    names = [result.arm for result in results]
    for replicate in range(3):
        trial = run.trial("speed", names, 128, replicate=replicate)
        run.add(trial, *results)
    return run


def edited(run, **cells):
    """Three processes with other cells in the rows of all."""
    run.speed()
    edit_rows(run.folder, lambda row: row.update(cells))
    return run


def unconverged(run):
    asked = {"target_ci": 0.001}
    edit_run(run.folder, lambda info: info["request"]["protocol"].update(asked))
    return run.speed()


def one_of_many(run):
    run.speed(speedups=[1.15, 1.2, 1.25])
    return run.speed("tf32", [0.9, 1.0, 1.1])


CASES = {
    "partial": partial,
    "other types": strayed,
    "crowded": lambda run: edited(run, foreign_load_pct="35"),
    "disturbed": lambda run: edited(run, disturbance="thermal slowdown for 2 s"),
    "one process": lambda run: run.speed(speedups=[2.0]),
    "one seed": trained,
    "unconverged": unconverged,
    "shared clock": lambda run: capped(run, 2.0),
    "one of many": one_of_many,
    "alone": lambda run: capped(run, 2.0).drew(1000, "fp32").drew(1800),
    "lost trials": lambda run: run.speed().lost("speed", "amp-bf16", "timeout", replicate=3),
}


def written(run, out):
    """Write the report of a run; return it and the texts of report.md and report.html."""
    contents = report([run.folder], out, figures="none")
    texts = []
    for name in ("report.md", "report.html"):
        text = (out / name).read_text()
        texts.append(unescape(text))
    return contents, *texts


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_is_in_json(run, name):
    CASES[name](run)
    exported = document.report(load([run.folder]))
    (answer,) = exported["answers"]
    assert answer["doubts"] == [name]
    doubts = [row["doubts"] for row in exported["results"]]
    assert name in doubts


def test_one_seed_is_no_doubt_about_a_training_without_accuracy(run):
    run.speed()
    for name in ("fp32", "amp-bf16"):
        run.train(name, [None], epochs=1, test_loss=None)
    exported = document.report(load([run.folder]))
    assert [row["doubts"] for row in exported["results"]] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_doubt_is_marked_at_its_row_and_explained_below_it(run, tmp_path, name):
    doubt = DOUBTS[name]
    CASES[name](run)
    contents, head, page = written(run, tmp_path)
    shown = terminal(contents, tmp_path)
    # An advised row is in bold.
    plain = head.replace("*", "")
    _, _, rest = plain.partition("| amp-bf16")
    row, _, _ = rest.partition("\n")
    assert doubt.mark in row
    assert f'</span> <span class="soft">{doubt.mark}</span>' in page
    advised = "fp32 (undecided)" if name == "one of many" else "amp-bf16"
    assert f"{advised} {doubt.mark}" in shown
    legend = f"{doubt.mark} {doubt.about}."
    assert f"\n{legend}\n" in head
    assert legend in page
    assert legend in shown


def test_a_partial_runs_advice_says_so_far_and_has_its_mark_with_a_legend(run, tmp_path):
    contents, head, page = written(partial(run), tmp_path)
    shown = terminal(contents, tmp_path)
    doubt = DOUBTS["partial"]
    assert f"amp-bf16 {doubt.mark}" in shown
    for text in (head, page, shown):
        assert f"{doubt.mark} {doubt.about}." in text
    assert grid([run.answer()]).legend.keys() == {doubt.mark}
    assert "So far, amp-bf16 is " in head
    assert "accuracy not shown so far</strong>" in page


def test_a_run_that_did_not_end_is_told_with_the_command_to_go_on(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder is named from here
    partial(run)
    assert cautions(load([run.folder])) == [
        "Run run is unfinished: it was stopped, or is still running. Go on with --resume run."
    ]
    undecided = ["speed of mlp on cpu", "train of mlp on cpu"]
    edit_run(run.folder, lambda info: info.update(undecided=undecided))
    (text,) = cautions(load([run.folder]))
    assert "--within; undecided: speed of mlp on cpu, train of mlp on cpu. Go on" in text


FIRST = "fp32 computed 90 % of its products in bfloat16 (middle), so it is no fp32."


def test_that_fp32_was_none_is_the_first_sentence_everywhere_and_at_every_verdict_over_it(
    run, tmp_path
):
    strayed(run)
    contents, head, page = written(run, tmp_path)
    details = text_of(tmp_path / "report.html")
    assert head.splitlines()[2].startswith(f"**{FIRST}**")
    assert "| fp32 ≠ |" in head
    assert f'aria-label="In short">\n<p><strong>{FIRST}</strong>' in page
    assert terminal(contents, tmp_path).startswith(FIRST)
    assert "| FASTER ≠ |" in details
    assert "so this is no comparison with FP32" in details
    exported = document.report(load([run.folder]))
    fp32, arm = exported["results"]
    assert fp32["other_types"] == "computed 90 % of its products in bfloat16 (middle)"
    assert arm["other_types"] is None


@pytest.mark.parametrize(
    ("of_fp32", "of_arm"),
    [
        ("float32:100%", "bfloat16:100%"),
        ("float32:100%", "bfloat16:80% float32:20%"),
        ("float64:50% complex128:50%", "bfloat16:100%"),
    ],
    ids=["fp32", "a mixed precision with a part in fp32", "float64"],
)
def test_products_in_types_that_a_precision_allows_are_no_doubt(run, of_fp32, of_arm):
    strayed(run, of_fp32, of_arm)
    assert other_types_sentence([run.answer()]) == []
    assert set(run.summary()["doubts"]) == {""}


@pytest.mark.parametrize(
    ("of_arm", "words"),
    [
        ("float16:75% bfloat16:25%", "computed 75 % of its products in float16 (middle)"),
        ("float32:97% bfloat16:3%", "computed 97 % of its products in float32 (middle)"),
    ],
    ids=["another type", "fp32"],
)
def test_an_arm_in_another_type_than_its_name_is_told_and_marked(run, of_arm, words):
    strayed(run, "float32:100%", of_arm)
    told, _ = other_types_sentence([run.answer()])
    assert told.text == f"amp-bf16 {words}."
    assert run.row()["doubts"] == "other types"
    assert run.row("fp32")["doubts"] == ""


def test_a_scripts_reference_in_another_type_is_told_as_fp32(tmp_path):
    run = RunBuilder(tmp_path / "run", reference="plain")
    strayed(run)
    script = {"command": ["train.py"], "arms": [["plain", ""]]}
    edit_run(run.folder, lambda info: info["request"].update(script=script))
    told, _ = other_types_sentence([run.answer()])
    assert told.text == FIRST


def test_of_two_models_only_the_one_whose_fp32_was_none_is_marked(run, tmp_path):
    strayed(run)
    RunBuilder(tmp_path / "sound", suite="gpt").speed()
    runs = load([tmp_path])
    rows = summarise(runs.trials)
    is_marked = rows["doubts"] == "other types"
    marked = rows[is_marked]
    assert set(marked["suite"]) == {"mlp"}
