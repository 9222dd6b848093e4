"""The training loop (thinker-spec 11; properties C21, C22, C31, C34): a real grader and a model that guesses digits."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch

from dosematch.errors import UserError
from dosematch.grading import Grader
from dosematch.questions.question import Question
from dosematch.resume import ResumeFolder, remove_leftovers
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.sampling import uniforms
from dosematch.settings import TrainSettings
from dosematch.training import Trainer

from ..tiny import (
    DIGITS,
    FORKING,
    ISOLATED,
    SHARED,
    byte_tokenizer,
    flat_gradient,
    guesser,
    reference_logprobs,
    stream,
)
from ..tiny import train_settings as settings

FIELDS = {
    "step",
    "seed",
    "arm",
    "run",
    "sha1_12",
    "question_source",
    "fast_acc",
    "fast_correct",
    "fast_len",
    "fast_eos",
    "fast_sha1",
    "step_class",
    "adv_fast",
    "censored",
    "loss_pg",
    "loss_verify",
    "loss_slow",
    "loss_summary_pg",
    "loss_distill",
    "loss_anchor",
    "anchor_n",
    "anchor_sha1",
    "is_boundary",
    "skipped_zero_grad",
    "grad_norm",
    "grad_norm_micro",
    "grad_norm_by_term",
    "grad_cosine",
    "clip_coef",
    "lr_used",
    "wd",
    "gen_tokens",
    "entropy_fwd_tokens",
    "teacher_fwd_tokens",
    "pg_bwd_tokens",
    "distill_bwd_tokens",
    "anchor_bwd_tokens",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "entropy",
    "sampling/logp_difference/mean",
    "sampling/logp_difference/max",
}
PANEL = [Question(id=f"dev/{i}", text=f"dev {i}", answer=digit, source="test") for i, digit in enumerate(DIGITS)]
SEED = 7


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


def trainer(grader: Grader, chosen: TrainSettings | None = None) -> Trainer:
    return Trainer(chosen or settings(), SEED, guesser(), byte_tokenizer(), grader, PANEL)


def trained(grader: Grader, folder: Path, chosen: TrainSettings | None = None, **options: str) -> Trainer:
    """A finished training of the default stream."""
    result = trainer(grader, chosen)
    result.train(stream(result.settings.training.steps, **options), ResumeFolder(folder))
    return result


@pytest.fixture(scope="module")
def straight(grader, tmp_path_factory) -> Trainer:
    """A training that nothing disturbed."""
    return trained(grader, tmp_path_factory.mktemp("straight"))


def outcome(run: Trainer) -> tuple:
    """Everything that a training leaves, as comparable values; JSON makes every bit of a float count."""
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    return json.dumps(run.rows, sort_keys=True), json.dumps(run.curve, sort_keys=True), run.n_updates, weights


def assert_identical(a: Trainer, b: Trainer) -> None:
    (*records_a, weights_a), (*records_b, weights_b) = outcome(a), outcome(b)
    assert records_a == records_b
    assert all(torch.equal(weights_a[name], weights_b[name]) for name in weights_b)


class Killed(Exception):
    """The process ended here."""


class KillingFolder(ResumeFolder):
    """Ends the training after the state of one step was saved."""

    def __init__(self, folder: Path, last: int) -> None:
        super().__init__(folder)
        self.last = last

    def save(self, step, tensors, values) -> None:
        super().save(step, tensors, values)
        if step == self.last:
            raise Killed


def killed(grader: Grader, folder: Path, last: int) -> None:
    """A training that ended after the checkpoint of step `last`."""
    run = trainer(grader)
    with pytest.raises(Killed):
        run.train(stream(), KillingFolder(folder, last))


def resumed(grader: Grader, folder: Path) -> tuple[Trainer, int]:
    """A new process's training in the same folder, and the number of rows it did not have to recompute."""
    run = trainer(grader)
    state = ResumeFolder(folder).load()
    run.train(stream(), ResumeFolder(folder))
    return run, len(state[1]["rows"]) if state else 0


# What the rows say


def test_the_runs_used_here_hold_every_class_of_step_and_of_rollout(straight):
    """Otherwise the tests below would be empty."""
    assert {"mixed"} < {row["step_class"] for row in straight.rows}
    rollouts = [
        (adv > 0, end)
        for row in straight.rows
        for adv, end in zip(row["adv_fast"], row["fast_eos"], strict=True)
        if row["step_class"] == "mixed"
    ]
    assert set(rollouts) == {(True, True), (True, False), (False, True), (False, False)}


def test_every_row_has_the_fields_of_the_contract_and_identifies_its_step(straight):
    for row, item in zip(straight.rows, stream(), strict=True):
        assert row.keys() >= FIELDS
        assert (row["step"], row["sha1_12"], row["question_source"]) == (item.step, item.sha1_12, item.source)
        assert (row["seed"], row["arm"], row["run"], row["wd"]) == (SEED, "tested", 1, 0.08)


def test_rewards_lengths_and_classes_of_a_row_agree(straight):
    for row in straight.rows:
        correct = row["fast_correct"]
        assert len(correct) == len(row["fast_len"]) == len(row["fast_eos"]) == len(row["adv_fast"]) == 8
        assert row["fast_acc"] == row["reward"] == pytest.approx(fmean(correct))
        assert row["reward_std"] == pytest.approx(stdev(map(float, correct)))
        assert row["frac_reward_zero_std"] == float(len(set(correct)) == 1)
        assert row["step_class"] == {0: "all_wrong", 8: "all_right"}.get(sum(correct), "mixed")
        assert row["completions/mean_length"] == pytest.approx(fmean(row["fast_len"]))
        assert row["completions/clipped_ratio"] == pytest.approx(1 - fmean(row["fast_eos"]))
        assert all(n <= limit for n, limit in zip(row["fast_len"], [3] * 4 + [6] * 4, strict=True))
        assert all(n > 2 for n in row["fast_len"][4:])  # min_tokens 2, then at the earliest the end of sequence
        truncated = zip(row["fast_len"], row["fast_eos"], [3] * 4 + [6] * 4, strict=True)
        assert all(end or n == limit for n, end, limit in truncated)


def test_advantages_of_a_row_are_those_of_its_rewards(straight):
    for row in straight.rows:
        rewards = [float(c) for c in row["fast_correct"]]
        sigma = stdev(rewards)
        expected = [(reward - fmean(rewards)) / (sigma + 1e-4) if sigma else 0.0 for reward in rewards]
        assert row["adv_fast"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("censor", [True, False])
def test_truncated_rollouts_below_average_are_marked_when_the_arm_censors(grader, tmp_path, straight, censor):
    run = straight if censor else trained(grader, tmp_path, settings({"censor": False}))
    for row in run.rows:
        marks = [censor and adv < 0 and not end for adv, end in zip(row["adv_fast"], row["fast_eos"], strict=True)]
        assert row["censored"] == marks
    assert any(any(row["censored"]) for row in run.rows) is censor


def test_token_counters_can_be_recounted_from_lengths(straight):
    total = 0
    for row, item in zip(straight.rows, stream(), strict=True):
        generated = sum(row["fast_len"])
        assert row["gen_tokens"] == {"fast": generated, "total": generated}
        prompt = len(f"{item.question}:".encode())
        trained_lengths = [
            n
            for n, adv, masked in zip(row["fast_len"], row["adv_fast"], row["censored"], strict=True)
            if adv != 0 and not masked
        ]
        assert row["pg_bwd_tokens"] == {
            "fed": sum(trained_lengths) + prompt * len(trained_lengths),
            "loss": sum(trained_lengths),
        }
        assert row["entropy_fwd_tokens"] == row["teacher_fwd_tokens"] == row["anchor_n"] == 0
        assert row["distill_bwd_tokens"] == row["anchor_bwd_tokens"] == {"fed": 0, "loss": 0}
        total += generated
    assert total <= 10 * straight.settings.arm.cap == 10 * (4 * 3 + 4 * 6)


def test_engine_and_trainer_agree_on_every_sampled_token(straight):
    for row in straight.rows:
        mean, most = row["sampling/logp_difference/mean"], row["sampling/logp_difference/max"]
        if row["pg_bwd_tokens"]["loss"]:
            assert 0 < mean <= most < 1e-4
        else:
            assert mean is most is None  # 0.0 would read as agreement


def test_engine_and_trainer_are_compared_at_any_temperature(grader, tmp_path):
    hot = trained(grader, tmp_path / "hot", settings({"temperature": 0.7}))
    assert all(row["sampling/logp_difference/max"] < 1e-4 for row in hot.rows if row["pg_bwd_tokens"]["loss"])
    run = trainer(grader, settings({"temperature": 0.7}))
    stale = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    stale["model.norm.weight"] *= 1.05  # still answers, so that there are mixed groups to compare
    run.engine.load_weights(stale)
    with pytest.raises(UserError, match="log-probabilities differ"):
        run.train(stream(), ResumeFolder(tmp_path / "stale"))


@pytest.mark.parametrize("asked", [0.5, 0.9, 1.1, 2.0])
def test_an_engine_that_samples_at_another_temperature_stops_the_training(grader, tmp_path, asked):
    run = trainer(grader, settings())
    generate = run.engine.generate
    run.engine.generate = lambda requests, batch_size=None: generate(
        [replace(request, temperature=asked) for request in requests], batch_size
    )
    with pytest.raises(UserError, match="log-probabilities differ"):
        run.train(stream(), ResumeFolder(tmp_path))


def test_an_engine_that_forgets_the_least_length_stops_the_training(grader, tmp_path):
    group = [{"n": 8, "max_tokens": 6, "min_tokens": 4}]
    run = trainer(grader, settings({"fast": group}))
    generate = run.engine.generate
    run.engine.generate = lambda requests, batch_size=None: [
        replace(completion, min_tokens=request.min_tokens)
        for request, completion in zip(
            requests, generate([replace(request, min_tokens=0) for request in requests], batch_size), strict=True
        )
    ]
    with pytest.raises(UserError, match="log-probabilities differ"):
        run.train(stream(), ResumeFolder(tmp_path))


def test_the_norm_of_a_step_is_that_of_its_only_term_undivided_by_the_accumulation(grader, tmp_path, straight):
    for row in straight.rows:
        assert row["grad_norm_by_term"] == ({"pg": row["grad_norm_micro"]} if row["grad_norm_micro"] > 0 else {})
        assert row["grad_cosine"] == {}
    whole = trained(grader, tmp_path, settings({"accumulation": 1}, steps=1, tail_start=1))
    assert straight.rows[0]["grad_norm_micro"] == pytest.approx(whole.rows[0]["grad_norm_micro"], rel=1e-5)


def test_terms_that_do_not_act_have_a_loss_of_zero(straight):
    for row in straight.rows:
        assert [row[f"loss_{kind}"] for kind in ("verify", "slow", "summary_pg", "distill", "anchor")] == [0.0] * 5


def test_boundaries_norms_and_rates(straight):
    for row in straight.rows:
        assert row["is_boundary"] is (row["step"] % 2 == 0)
        assert (row["grad_norm_micro"] > 0) is (row["step_class"] == "mixed" and row["pg_bwd_tokens"]["loss"] > 0)
        if row["is_boundary"] and not row["skipped_zero_grad"]:
            assert row["grad_norm"] > 0
            assert row["clip_coef"] == pytest.approx(min(1.0, 1.0 / row["grad_norm"]), rel=1e-5)
            assert row["lr_used"] == pytest.approx(1e-3 * 0.5)
        else:
            assert row["grad_norm"] == 0.0
    assert straight.n_updates == sum(row["grad_norm"] > 0 for row in straight.rows) > 0


def test_the_curve_measures_the_start_every_interval_and_the_tail_average(straight):
    assert [point["step"] for point in straight.curve] == [0, 4, 8, 10]
    assert all(point["n"] == len(PANEL) for point in straight.curve)
    assert all(point["accuracy"] == pytest.approx(point["correct"] / point["n"]) for point in straight.curve)
    for point in straight.curve:
        assert sum(point["verdicts"].values()) == point["n"]
        assert point["verdicts"]["No"] <= point["triggered"] <= point["n"]
        assert 0 <= point["verify_slow_accuracy"] <= 1


# What one step computes


def first_group(grader: Grader, chosen: TrainSettings) -> tuple[tuple[int, ...], list, list[float]]:
    """Prompt, completions and advantages of step 1, rebuilt from the sampling counter and the definition."""
    item, tokenizer = stream()[0], byte_tokenizer()
    prompt = tuple(tokenizer.encode(f"{item.question}:"))
    limits = [(group.max_tokens, group.min_tokens) for group in chosen.arm.fast for _ in range(group.n)]
    key = {"study": "thinker", "seed": SEED, "run": 1, "step": 1, "question": item.sha1_12, "stage": "fast"}
    requests = [
        Request(prompt, longest, shortest, uniforms(longest, **key, rollout=i))
        for i, (longest, shortest) in enumerate(limits)
    ]
    completions = TorchEngine(guesser(), tokenizer.eos_token_id).generate(requests)
    texts = [tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in completions]
    rewards = [float(grader.grade(text, item.answer).correct) for text in texts]
    return prompt, completions, [(reward - fmean(rewards)) / (stdev(rewards) + 1e-4) for reward in rewards]


@pytest.mark.parametrize("censor", [True, False])
def test_a_step_descends_the_loss_of_the_definition(grader, tmp_path, censor):
    chosen = settings({"censor": censor, "accumulation": 1}, steps=1, tail_start=1)
    prompt, completions, advantages = first_group(grader, chosen)
    assert max(advantages) > 0
    reference = guesser()
    loss = torch.zeros(())
    for completion, advantage in zip(completions, advantages, strict=True):
        if not (censor and advantage < 0 and completion.finish_reason == "length"):
            loss = loss - advantage * reference_logprobs(reference, prompt, completion.token_ids).sum() / 8.0
    loss = loss / len(completions)
    loss.backward()
    norm = flat_gradient(reference).norm().item()

    run = trained(grader, tmp_path, chosen)
    [row] = run.rows
    assert row["fast_len"] == [len(c.token_ids) for c in completions]
    assert row["loss_pg"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert row["grad_norm_micro"] == pytest.approx(norm, rel=1e-5)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)

    optimizer = torch.optim.AdamW(reference.parameters(), lr=5e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.08)
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    optimizer.step()
    for (name, expected), found in zip(reference.named_parameters(), run.model.parameters(), strict=True):
        # At a first step Adam moves by the gradient's sign, which rounding may turn where the gradient is nearly zero.
        near = (found - expected).abs() < 2e-6
        assert near.float().mean() > 0.99, name


def test_thirty_steps_at_accumulation_5_are_six_updates(grader, tmp_path):
    run = trained(grader, tmp_path, settings({"accumulation": 5}, steps=30, tail_start=16, curve_every=30))
    assert run.n_updates == 6
    assert [row["step"] for row in run.rows if row["is_boundary"]] == [5, 10, 15, 20, 25, 30]
    assert {row["step"] for row in run.rows if row["grad_norm"] > 0} == {5, 10, 15, 20, 25, 30}


def test_the_result_is_the_mean_of_the_weights_after_the_tail_steps(grader, tmp_path):
    run = trainer(grader)
    snapshots, add = {}, run.tail.add

    def recorded(step, weights) -> None:
        snapshots[step] = {name: tensor.detach().clone() for name, tensor in weights.items()}
        add(step, weights)

    run.tail.add = recorded
    run.train(stream(), ResumeFolder(tmp_path))
    assert not torch.equal(*(snapshots[step]["model.embed_tokens.weight"] for step in (6, 8)))
    for name, tensor in run.model.named_parameters():
        mean = torch.stack([snapshots[step][name].double() for step in range(6, 11)]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


def test_a_run_that_never_answers_right_changes_no_weight(grader, tmp_path):
    run = trained(grader, tmp_path, answers="9")
    assert run.n_updates == 0
    assert all(row["step_class"] == "all_wrong" and row["loss_pg"] == 0.0 for row in run.rows)
    assert [row["skipped_zero_grad"] for row in run.rows] == [row["is_boundary"] for row in run.rows]
    for tensor, start in zip(run.model.parameters(), guesser().parameters(), strict=True):
        torch.testing.assert_close(tensor, start, rtol=3e-7, atol=0)


def test_without_skip_decay_shrinks_the_weights_of_such_a_run(grader, tmp_path):
    run = trained(grader, tmp_path, settings({"zero_grad_skip": False}, tail_start=10), answers="9")
    assert run.n_updates == 5
    factor = (1 - 1e-3 * 0.5 * 0.08) ** 5
    for tensor, start in zip(run.model.parameters(), guesser().parameters(), strict=True):
        torch.testing.assert_close(tensor, start * factor, rtol=1e-6, atol=0)


def test_a_stream_of_another_length_is_refused(grader, tmp_path):
    with pytest.raises(UserError, match="9"):
        trainer(grader).train(stream(9), ResumeFolder(tmp_path))


def test_stale_engine_weights_end_the_run(grader, tmp_path):
    run = trainer(grader, settings({"accumulation": 1}))
    run.engine.load_weights = lambda _: None
    with pytest.raises(UserError, match="max_logp_difference"):
        run.train(stream(), ResumeFolder(tmp_path))


def test_log_probabilities_that_are_not_numbers_end_the_run(grader, tmp_path):
    run = trainer(grader, settings({"accumulation": 10}))
    with torch.no_grad():
        run.model.model.norm.weight.fill_(math.nan)  # in the trainer only: the engine holds a copy
    with pytest.raises(UserError):
        run.train(stream(), ResumeFolder(tmp_path))
    assert not run.rows


# Runs against each other


def test_two_equal_runs_are_bit_identical(grader, tmp_path, straight):
    assert_identical(trained(grader, tmp_path), straight)


@pytest.mark.parametrize("micro_batch_tokens", [1, 10**6])
def test_the_cut_into_micro_batches_changes_no_sampled_token(grader, tmp_path, straight, micro_batch_tokens):
    run = trained(grader, tmp_path, settings(micro_batch_tokens=micro_batch_tokens, steps=4, tail_start=4))
    for row, reference in zip(run.rows, straight.rows, strict=False):
        assert row["fast_len"] == reference["fast_len"]
        assert row["loss_pg"] == pytest.approx(reference["loss_pg"], abs=1e-4)
        assert row["grad_norm_micro"] == pytest.approx(reference["grad_norm_micro"], rel=1e-3)
        assert row["pg_bwd_tokens"] == reference["pg_bwd_tokens"]


def test_another_run_index_differs_in_its_random_numbers_alone(grader, tmp_path, straight):
    run = trained(grader, tmp_path, settings({"run": 2}))
    assert [row["fast_len"] for row in run.rows] != [row["fast_len"] for row in straight.rows]
    assert {row["run"] for row in run.rows} == {2}
    assert run.curve[0] == straight.curve[0]
    assert [row["sha1_12"] for row in run.rows] == [row["sha1_12"] for row in straight.rows]


def test_arms_share_the_random_numbers_of_a_step(grader, tmp_path, straight):
    run = trained(grader, tmp_path, settings({"name": "other", "weight_decay": 0.0}))
    for field in ("fast_len", "fast_correct", "entropy"):
        assert run.rows[0][field] == straight.rows[0][field]


# Other episodes

EPISODES = {"shared actor": SHARED, "isolated": ISOLATED, "forking": FORKING}


@pytest.fixture(scope="module", params=EPISODES.values(), ids=EPISODES)
def run(request, grader, tmp_path_factory) -> Trainer:
    """A training of every kind of episode, with what its engine sampled under `sampled`, one list per stage."""
    made = trainer(grader, settings(request.param))
    generate, made.sampled = made.engine.generate, []

    def recorded(requests, batch_size=None):
        completions = generate(requests, batch_size=batch_size)
        if requests[0].uniforms is not None:
            made.sampled.append(list(zip(requests, completions, strict=True)))
        return completions

    made.engine.generate = recorded
    made.train(stream(), ResumeFolder(tmp_path_factory.mktemp("run")))
    return made


def test_every_term_acts_in_the_episodes_used_here(run):
    terms = set().union(*(row["grad_norm_by_term"] for row in run.rows))
    if run.settings.arm.pg_stages:  # the guesser never writes a verdict: all are Invalid, and give no signal
        assert terms == {"pg", "slow", "summary_pg", "distill"}
    else:
        assert terms == {"pg", "distill", "anchor"}


def test_stage_counters_are_those_of_what_was_sampled(run):
    """Recounted from the completions alone; stages come in their order, those that nothing reaches not at all."""
    stages, asked = [], iter(run.sampled)
    total = 0
    for row in run.rows:
        assert row["gen_tokens"]["total"] == sum(n for name, n in row["gen_tokens"].items() if name != "total")
        assert row["gen_tokens"]["total"] <= run.settings.arm.cap
        total += row["gen_tokens"]["total"]
        for name in ("fast", "verify", "slow", "summary", "fork"):
            if row["gen_tokens"].get(name):
                stages.append(name)
                assert row["gen_tokens"][name] == sum(len(c.token_ids) for _, c in next(asked)), (row["step"], name)
    assert list(asked) == []
    assert total <= 10 * run.settings.arm.cap
    assert len(set(stages)) >= 2


def test_counts_of_later_stages_agree_with_the_rewards(run):
    for row in run.rows:
        failed = row["fast_correct"].count(False)
        if "fork" in row["gen_tokens"]:
            assert len(row["fork_parents"]) == len(row["fork_accepted"]) == row["n_fork"] in (0, 3)
            assert all(not row["fast_correct"][parent["rollout"]] for parent in row["fork_parents"])
            long = [row["fast_len"][i] for i in range(8) if not row["fast_correct"][i] and row["fast_len"][i] >= 3]
            assert row["entropy_fwd_tokens"] == sum(long)
            assert bool(row["n_fork"]) is bool(long)
        else:
            assert len(row["verdicts"]) == 8
            assert row["n_slow"] == failed
            assert row["n_summary"] == pytest.approx(failed * (row["slow_acc"] or 0.0))
            assert row["entropy_fwd_tokens"] == 0
        if failed == 0:
            assert row["distill_bwd_tokens"] == {"fed": 0, "loss": 0}


def test_anchors_are_right_rollouts_of_earlier_steps(run):
    identities = [row["sha1_12"] for row in run.rows]
    for row in run.rows:
        assert len(row["anchor_sha1"]) == row["anchor_n"]
        assert (row["anchor_n"] > 0) is (row["anchor_bwd_tokens"]["loss"] > 0)
        for identity in row["anchor_sha1"]:
            origin = identities.index(identity)
            assert origin + 1 < row["step"]
            assert any(run.rows[origin]["fast_correct"])


def test_teachers_are_asked_where_alpha_is_below_one_alone(run):
    taught = [row["teacher_fwd_tokens"] > 0 for row in run.rows]
    distilled = [row["distill_bwd_tokens"]["loss"] > 0 for row in run.rows]
    assert taught == (distilled if run.settings.arm.alpha < 1 else [False] * len(run.rows))


def test_the_step_size_follows_what_was_accumulated(run):
    kinds: set[str] = set()
    rates = {(True, False): 0.5, (True, True): 0.25, (False, True): 0.125}
    for row in run.rows:
        kinds |= row["grad_norm_by_term"].keys()
        if row["is_boundary"]:
            policy, distilled = bool(kinds - {"distill", "anchor"}), bool(kinds & {"distill", "anchor"})
            assert row["lr_used"] == (0.0 if row["skipped_zero_grad"] else 1e-3 * rates[policy, distilled])
            kinds = set()


def test_the_pass_rate_of_verification_rewards_is_the_running_one_of_the_steps_before(run):
    rate = 0.5
    for row in run.rows:
        if "pbar_ema" in row:
            assert row["pbar_ema"] == pytest.approx(rate, abs=1e-12)
        rate = 0.9 * rate + 0.1 * row["fast_acc"]


@pytest.mark.parametrize("episode", EPISODES.values(), ids=EPISODES)
@pytest.mark.parametrize("last", [2, 8])
def test_every_episode_resumes_bit_for_bit(grader, tmp_path, episode, last):
    chosen = settings(episode)
    reference = trained(grader, tmp_path / "reference", chosen)
    with pytest.raises(Killed):
        trainer(grader, chosen).train(stream(), KillingFolder(tmp_path / "killed", last=last))
    assert_identical(trained(grader, tmp_path / "killed", chosen), reference)


def test_a_random_reward_is_a_coin_that_ignores_the_answer(grader, tmp_path):
    chosen = settings({"reward": "random"})
    run = trained(grader, tmp_path / "run", chosen)
    other = trained(grader, tmp_path / "other", chosen, answers="9")
    fields = ("fast_sha1", "fast_correct", "grad_norm_micro")
    assert [[row[f] for f in fields] for row in run.rows] == [[row[f] for f in fields] for row in other.rows]
    assert 0.2 < fmean(row["fast_acc"] for row in run.rows) < 0.8


# Resume


@pytest.mark.parametrize("last", [2, 4, 6, 8])
def test_a_run_killed_after_any_checkpoint_resumes_bit_for_bit(grader, tmp_path, straight, last):
    killed(grader, tmp_path, last)
    run, kept = resumed(grader, tmp_path)
    assert kept == last
    assert_identical(run, straight)


def test_a_run_killed_in_the_middle_of_an_accumulation_resumes_bit_for_bit(grader, tmp_path):
    chosen = settings({"accumulation": 5}, checkpoint_every=3)
    reference = trained(grader, tmp_path / "reference", chosen)
    with pytest.raises(Killed):
        trainer(grader, chosen).train(stream(), KillingFolder(tmp_path / "killed", last=3))
    run = trained(grader, tmp_path / "killed", chosen)
    assert_identical(run, reference)


def test_a_run_killed_twice_resumes_bit_for_bit(grader, tmp_path, straight):
    killed(grader, tmp_path, 2)
    killed(grader, tmp_path, 6)
    run, _ = resumed(grader, tmp_path)
    assert_identical(run, straight)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("damage", [truncated, flipped, Path.unlink])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(grader, tmp_path, straight, suffix, damage):
    killed(grader, tmp_path, 6)
    damage(tmp_path / f"step000006{suffix}")
    run, kept = resumed(grader, tmp_path)
    assert kept == 4
    assert_identical(run, straight)


def test_with_every_checkpoint_damaged_training_starts_again(grader, tmp_path, straight):
    killed(grader, tmp_path, 6)
    for file in tmp_path.glob("*.safetensors"):
        truncated(file)
    run, kept = resumed(grader, tmp_path)
    assert kept == 0
    assert_identical(run, straight)


def test_progress_after_torn_states_survives_the_next_kill(grader, tmp_path, straight, caplog):
    """Torn states of later steps used to push out the new ones."""
    killed(grader, tmp_path, 6)
    for file in tmp_path.glob("*.safetensors"):
        truncated(file)
    killed(grader, tmp_path, 2)
    assert caplog.text.count("torn by a kill") == 2
    assert "step000006.safetensors" in caplog.text
    run, kept = resumed(grader, tmp_path)
    assert kept == 2
    assert_identical(run, straight)


def test_resume_state_does_not_grow(grader, tmp_path):
    trained(grader, tmp_path)
    states = [f"step{step:06d}{suffix}" for step in (6, 8) for suffix in (".json", ".safetensors")]
    assert sorted(file.name for file in tmp_path.iterdir()) == states


def test_leftovers_of_killed_runs_are_removed_and_results_stay(tmp_path):
    ResumeFolder(tmp_path / ".resume-0123").save(2, {"w": torch.ones(1)}, {})
    ResumeFolder(tmp_path / ".resume-other").save(2, {"w": torch.ones(1)}, {})
    (tmp_path / "training.jsonl").write_text("{}")
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["training.jsonl"]
