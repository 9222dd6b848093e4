"""Ancestry audit: which panel questions a checkpoint's ancestors were trained on (thinker-spec 3.3)."""

from collections.abc import Callable, Iterable
from typing import Any

from dosematch.errors import UserError
from dosematch.identity import sha1_12, sha1_12_alnum, sha1_12_norm
from dosematch.near_duplicates import DETECTORS, find_copies, planted_scores, unseen
from dosematch.questions.manifest import Manifest, PanelEntry
from dosematch.questions.question import Question
from dosematch.streams import Stream

KEYS: dict[str, Callable[[str], str]] = {"exact": sha1_12, "normalised": sha1_12_norm, "alphanumeric": sha1_12_alnum}


def audit_ancestry(
    manifest: Manifest,
    parent: list[Question],
    streams: list[Stream],
    panels: dict[str, list[Question]] | None = None,
) -> dict[str, Any]:
    """Compare every panel with the parent slice and one stream per training seed (thinker-spec 3.3).

    Returns `{panels: {panel: {n, parent_overlap, stream_overlap: {seed: n}, parent_overlap_norm, stream_overlap_norm}},
    exposed: [{train_seed, step, sha1_12, panel, index, answer}], n_unique_exposed, decontaminated: {seed: bool}}`.
    Overlaps count panel items. A question in several panels, or twice in one, gives one entry per place. The `_norm`
    counts are only reported, and null where the manifest has no normalised identities. With the texts of `panels` the
    result has also `near_duplicates`, see `_near_duplicates`.
    Raises `UserError` for two streams of one seed.
    """
    by_seed = {str(stream.seed): stream for stream in streams}
    if len(by_seed) < len(streams):
        raise UserError("audit: two streams have the same seed; audit the study and the clean streams apart")
    exposed = sorted(
        (entry for stream in streams for entry in _exposed(manifest, stream)),
        key=lambda entry: (entry["train_seed"], entry["step"], entry["panel"], entry["index"]),
    )
    near = {} if panels is None else {"near_duplicates": _near_duplicates(panels, parent, by_seed)}
    return {
        **near,
        "panels": {name: _overlaps(entry, parent, by_seed) for name, entry in manifest.items()},
        "exposed": exposed,
        "n_unique_exposed": len({entry["sha1_12"] for entry in exposed}),
        "decontaminated": {seed: stream.decontaminated for seed, stream in by_seed.items()},
    }


def _exposed(manifest: Manifest, stream: Stream) -> Iterable[dict[str, Any]]:
    for item in stream.items:
        for panel, entry in manifest.items():
            for index, identity in enumerate(entry.sha1_12):
                if identity == item.sha1_12:
                    yield {
                        "train_seed": stream.seed,
                        "step": item.step,
                        "sha1_12": identity,
                        "panel": panel,
                        "index": index,
                        "answer": item.answer,
                    }


def _overlaps(entry: PanelEntry, parent: list[Question], streams: dict[str, Stream]) -> dict[str, Any]:
    parent_texts = [question.text for question in parent]
    stream_texts = {seed: [item.question for item in stream.items] for seed, stream in streams.items()}

    def count(identities: list[str] | None, key: Callable[[str], str], texts: list[str]) -> int | None:
        if identities is None:
            return None
        trained_on = set(map(key, texts))
        return sum(identity in trained_on for identity in identities)

    columns = (("", entry.sha1_12, sha1_12), ("_norm", entry.sha1_12_norm, sha1_12_norm))
    counts: dict[str, Any] = {"n": entry.n}
    for suffix, identities, key in columns:
        counts[f"parent_overlap{suffix}"] = count(identities, key, parent_texts)
        counts[f"stream_overlap{suffix}"] = {
            seed: count(identities, key, texts) for seed, texts in stream_texts.items()
        }
    return counts


def _near_duplicates(
    panels: dict[str, list[Question]], parent: list[Question], streams: dict[str, Stream]
) -> dict[str, Any]:
    """Panel questions that each detector finds: `{panels: {panel: {detector: {parent, stream: {seed}}}}, matches}`.

    A match is `{train_seed, panel, index, sha1_12, steps: {detector: [step, ...]}}`, in the order of seeds and panels.
    """
    counts: dict[str, Any] = {}
    matches = []
    for panel, questions in sorted(panels.items()):
        texts = [question.text for question in questions]
        in_parent = find_copies(texts, [question.text for question in parent])
        entry: dict[str, Any] = {name: {"parent": sum(map(bool, in_parent[name])), "stream": {}} for name in DETECTORS}
        for seed, stream in streams.items():
            hits = find_copies(texts, [item.question for item in stream.items])
            for name in DETECTORS:
                entry[name]["stream"][seed] = sum(map(bool, hits[name]))
            for index, text in enumerate(texts):
                places = {name: hits[name][index] for name in DETECTORS if hits[name][index]}
                if places:
                    steps = {name: [stream.items[place].step for place in found] for name, found in places.items()}
                    place = {"train_seed": stream.seed, "panel": panel, "index": index, "sha1_12": sha1_12(text)}
                    matches.append({**place, "steps": steps})
        counts[panel] = entry
    matches.sort(key=lambda match: (match["train_seed"], match["panel"], match["index"]))
    return {"panels": counts, "matches": matches}


def audit_near(training: list[Question], panels: dict[str, list[Question]]) -> dict[str, Any]:
    """Every detector on any training and panel questions, with its recall and precision on planted copies.

    Returns `{panel: {n, overlap: {detector: n}, unseen: {detector: n}, planted, matches: [{id, detector: [training
    ids]}]}}`; `unseen` counts panel questions too short for the detector, `planted` is that of `planted_scores`.
    """
    result = {}
    for panel, questions in panels.items():
        texts = [question.text for question in questions]
        hits = find_copies(texts, [question.text for question in training])
        found = {
            question.id: {name: sorted(training[i].id for i in hits[name][index]) for name in hits if hits[name][index]}
            for index, question in enumerate(questions)
        }
        result[panel] = {
            "n": len(questions),
            "overlap": {name: sum(map(bool, places)) for name, places in hits.items()},
            "unseen": unseen(texts),
            "planted": planted_scores(texts),
            "matches": [{"id": identity, **names} for identity, names in found.items() if names],
        }
    return result


def repeated(questions: list[Question]) -> list[dict[str, Any]]:
    """Questions whose normalised text stands in a set more than once: `[{ids, answers, conflicting}]` in set order.

    They are reported, not dropped; `conflicting` says that their answers, as written, are not all the same.
    """
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(sha1_12_norm(question.text), []).append(question)
    return [
        {
            "ids": [question.id for question in group],
            "answers": [question.answer for question in group],
            "conflicting": len({question.answer for question in group}) > 1,
        }
        for group in groups.values()
        if len(group) > 1
    ]


def audit_questions(training: list[Question], panels: dict[str, list[Question]]) -> dict[str, Any]:
    """Compare any training questions with any panels, by all three identities (thinker-spec 3.2).

    Returns `{n_training, n_training_distinct, panels: {panel: {n, overlap: {exact, normalised, alphanumeric},
    matches: [{index, id, sha1_12, training_ids, identity}]}}}`; a match names the strictest identity that finds it.
    """
    places: dict[str, dict[str, list[str]]] = {name: {} for name in KEYS}
    for question in training:
        for name, key in KEYS.items():
            places[name].setdefault(key(question.text), []).append(question.id)
    return {
        "n_training": len(training),
        "n_training_distinct": {name: len(found) for name, found in places.items()},
        "panels": {panel: _matches(questions, places) for panel, questions in panels.items()},
    }


def _matches(questions: list[Question], places: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    overlap = dict.fromkeys(KEYS, 0)
    matches = []
    for index, question in enumerate(questions):
        found = {name: ids for name, key in KEYS.items() if (ids := places[name].get(key(question.text)))}
        for name in found:
            overlap[name] += 1
        if found:
            strictest = next(iter(found))
            matches.append(
                {
                    "index": index,
                    "id": question.id,
                    "sha1_12": sha1_12(question.text),
                    "identity": strictest,
                    "training_ids": found[strictest],
                }
            )
    return {"n": len(questions), "overlap": overlap, "matches": matches}
