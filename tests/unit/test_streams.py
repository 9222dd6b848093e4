import random

import pytest

from dosematch.audit import audit_ancestry, audit_questions
from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.manifest import PanelEntry, identities
from dosematch.questions.question import Question
from dosematch.records import read_json, write_json
from dosematch.streams import Stream, build_stream, read_stream


def questions(name: str, n: int) -> list[Question]:
    return [Question(id=f"{name}/{i}", text=f"What is {name} {i}?", answer=str(i), source=name) for i in range(n)]


def manifest(**panels: list[Question]) -> dict[str, PanelEntry]:
    return {
        name: PanelEntry(
            n=len(panel),
            source="test",
            sha1_12=[sha1_12(q.text) for q in panel],
            sha1_12_norm=[sha1_12(q.text) for q in panel],
        )
        for name, panel in panels.items()
    }


def build(seed=7, n=30, stencil=None, pool=None, parent=(), panels=None) -> Stream:
    stencil = questions("stencil", 40) if stencil is None else stencil
    pool = questions("pool", 40) if pool is None else pool
    return build_stream(seed, n, stencil, pool, frozenset(sha1_12(q.text) for q in parent), panels)


def test_odd_steps_are_stencil_and_even_steps_pool_in_the_order_of_a_seeded_shuffle():
    stream = build()
    assert [item.step for item in stream.items] == list(range(1, 31))
    assert [item.source for item in stream.items] == ["stencil", "pool"] * 15
    order = list(range(40))
    random.Random(7).shuffle(order)
    assert [item.index for item in stream.items if item.source == "pool"] == order[:15]
    assert all(item.question == f"What is {item.source} {item.index}?" for item in stream.items)


def test_streams_depend_on_the_seed_and_on_nothing_else():
    assert build() == build()
    assert build().items != build(seed=8).items


def test_parent_questions_and_stencil_questions_in_the_pool_never_appear():
    stencil, pool = questions("stencil", 40), questions("pool", 40)
    stream = build(stencil=stencil, pool=stencil + pool, parent=pool[:25] + stencil[:25])
    assert len(stream.items) == 30
    assert {item.question for item in stream.items if item.source == "pool"} == {q.text for q in pool[25:]}
    assert not {item.sha1_12 for item in stream.items} & {sha1_12(q.text) for q in stencil[:25]}


def test_two_steps_with_one_question_are_refused():
    with pytest.raises(UserError, match=r"steps \d+ and \d+ share the question [0-9a-f]{12}"):
        build(pool=questions("pool", 8) * 2)


def test_too_few_questions_are_refused_by_name():
    with pytest.raises(UserError, match="30 steps need 15 pool questions, 14 are left"):
        build(pool=questions("pool", 14))


def test_planted_panel_question_is_found_with_its_step_and_index():
    panel, pool = questions("panel", 20), questions("pool", 40)
    index_in_pool = next(item.index for item in build(pool=pool).items if item.step == 8)
    pool[index_in_pool] = panel[13]
    audit = audit_ancestry(manifest(conf=panel), [], [build(pool=pool)])
    assert audit["exposed"] == [
        {"train_seed": 7, "step": 8, "sha1_12": sha1_12(panel[13].text), "panel": "conf", "index": 13, "answer": "13"}
    ]
    assert audit["panels"]["conf"]["stream_overlap"] == {"7": 1}
    assert audit["n_unique_exposed"] == 1


def test_one_changed_character_is_not_found_exactly_but_whitespace_is_in_the_normalised_column():
    panel, pool = questions("panel", 20), questions("pool", 40)
    index_in_pool = next(item.index for item in build(pool=pool).items if item.step == 8)
    pool[index_in_pool] = panel[13].model_copy(update={"text": panel[13].text + " "})
    audit = audit_ancestry(manifest(conf=panel), [], [build(pool=pool)])
    assert audit["exposed"] == []
    assert audit["panels"]["conf"]["stream_overlap"] == {"7": 0}
    assert audit["panels"]["conf"]["stream_overlap_norm"] == {"7": 1}


def test_decontaminated_stream_has_no_overlap_the_same_length_and_the_rest_of_the_study_stream():
    panel, pool = questions("panel", 20), questions("pool", 40)
    pool[:20] = panel
    panels = manifest(conf=panel, val500=questions("stencil", 5))
    study, clean = build(pool=pool), build(pool=pool, panels=identities(panels))
    audits = {name: audit_ancestry(panels, [], [stream]) for name, stream in (("study", study), ("clean", clean))}
    assert audits["study"]["n_unique_exposed"] > 0
    assert audits["clean"]["n_unique_exposed"] == 0
    assert len(clean.items) == len(study.items) == 30
    assert not study.decontaminated and study.dropped == []
    assert clean.decontaminated and clean.dropped == sorted(identities(panels))
    for source in ("stencil", "pool"):
        kept = [i.sha1_12 for i in study.items if i.source == source and i.sha1_12 not in identities(panels)]
        assert [i.sha1_12 for i in clean.items if i.source == source][: len(kept)] == kept


def test_clean_stream_equals_the_study_stream_where_no_panel_question_is_near():
    panels = identities(manifest(conf=questions("panel", 20)))
    assert build(panels=panels).items == build().items


def test_question_in_two_panels_and_twice_in_one_gives_an_entry_per_place_and_one_identity():
    panel, pool = questions("panel", 3), questions("pool", 15)
    pool[0] = panel[1]
    audit = audit_ancestry(manifest(conf=panel, sec=[panel[1], panel[0], panel[1]]), [], [build(pool=pool)])
    assert [(entry["panel"], entry["index"]) for entry in audit["exposed"]] == [("conf", 1), ("sec", 0), ("sec", 2)]
    assert audit["n_unique_exposed"] == 1


def test_parent_overlap_is_counted_apart_and_two_seeds_are_listed_apart():
    panel, pool = questions("panel", 5), questions("pool", 15)
    pool[0] = panel[0]
    streams = [build(seed=1, pool=pool), build(seed=2, pool=pool)]
    audit = audit_ancestry(manifest(conf=panel), panel[3:], streams)
    assert audit["panels"]["conf"]["parent_overlap"] == 2
    assert audit["panels"]["conf"]["stream_overlap"] == {"1": 1, "2": 1}
    assert [entry["train_seed"] for entry in audit["exposed"]] == [1, 2]
    assert audit["n_unique_exposed"] == 1


def test_two_streams_of_one_seed_are_refused():
    with pytest.raises(UserError, match="same seed"):
        audit_ancestry(manifest(conf=questions("panel", 2)), [], [build(), build()])


def test_manifest_without_normalised_identities_gives_null_counts():
    entry = PanelEntry(n=1, source="test", sha1_12=[sha1_12("What is pool 0?")])
    audit = audit_ancestry({"conf": entry}, questions("pool", 1), [build()])
    assert audit["panels"]["conf"]["parent_overlap"] == 1
    assert audit["panels"]["conf"]["parent_overlap_norm"] is None


def test_written_stream_reads_back_and_a_changed_question_is_refused(tmp_path):
    path, stream = tmp_path / "seed7.json", build()
    write_json(path, stream.model_dump())
    assert read_stream(path) == stream
    raw = read_json(path)
    raw["items"][3]["question"] += "?"
    write_json(path, raw)
    with pytest.raises(UserError, match=r"seed7.json: items.3: .*not the identity of the question of step 4"):
        read_stream(path)


def test_audit_of_files_names_the_strictest_identity_that_finds_a_question():
    texts = ["What is x+1?", "What is  x+2?", "What is x-3?", "What is y?"]
    training = [Question(id=f"t{i}", text=text, answer="0", source="t") for i, text in enumerate(texts)]
    panel = [Question(id=f"p{i}", text=f"What is x+{i}?", answer="0", source="p") for i in range(1, 5)]
    result = audit_questions(training, {"p": panel})["panels"]["p"]
    assert result["overlap"] == {"exact": 1, "normalised": 2, "alphanumeric": 3}
    assert [(m["index"], m["identity"], m["training_ids"]) for m in result["matches"]] == [
        (0, "exact", ["t0"]),
        (1, "normalised", ["t1"]),
        (2, "alphanumeric", ["t2"]),
    ]
