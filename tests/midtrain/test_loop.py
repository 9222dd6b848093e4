"""The loop of all arms on a random model: equalities between arms, statuses, resume (t5-spec 4.9, 6.4, test T27)."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dosematch.errors import UserError
from dosematch.midtrain.actor import token_weights
from dosematch.midtrain.cost import predicted_cost
from dosematch.resume import ResumeFolder

from ..tiny import random_model
from .small import material, settings, trainer


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def finished(chosen, tmp_path, seed: int = 1):
    run = trainer(chosen, seed)
    run.train(ResumeFolder(tmp_path / "resume"))
    return run


def test_next_token_training_alone_is_plain_training_bit_for_bit(tmp_path):
    """T27: without thoughts and with an anchor of weight 1, nothing is left but AdamW on the mean cross-entropy."""
    chosen = settings("ntp", steps=3)
    run = finished(chosen, tmp_path)

    model = random_model(initializer_range=0.1)
    constants, data = chosen.training, material()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=constants.lr_actor, betas=(0.9, 0.95), eps=constants.adam_eps, weight_decay=0.0
    )
    for step in range(1, 4):
        items = data.select("actor", chosen.sizes.n_act, 1, step=step, epoch=step)
        for epoch in range(chosen.arm.loss.epochs):
            order = torch.randperm(len(items), generator=run.actor._generator(step, epoch)).tolist()
            for m in range(chosen.arm.loss.minibatches):
                rows = [items[i].sequence for i in order[m :: chosen.arm.loss.minibatches]]
                ids = data.sequences[rows[: constants.anchor_sequences]]
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
                cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), constants.clip_norm)
                optimizer.step()
                optimizer.zero_grad()
    assert equal(weights(run.model), weights(model))
    assert not equal(weights(model), weights(random_model(initializer_range=0.1)))
    assert [row["status"] for row in run.rows] == ["accepted"] * 3
    assert all(row["n_traj"] == {} for row in run.rows)


def test_an_arm_that_is_not_trained_is_the_base_itself(tmp_path):
    run = finished(settings("base"), tmp_path)
    assert run.rows == [] and equal(weights(run.model), weights(random_model(initializer_range=0.1)))


def test_the_moving_baseline_changes_rewards_and_no_weight(tmp_path):
    """T14 in the loop: what is equal for all thoughts of a group cancels, so only the logged reward differs."""
    moving = finished(settings("rlp", reward={"ema_tau": 0.1}), tmp_path / "a")
    frozen = finished(settings("rlp", reward={"baseline": "frozen_current"}), tmp_path / "b")
    assert moving.rows[1]["reward"] != pytest.approx(frozen.rows[1]["reward"], abs=1e-6)
    for name, tensor in weights(moving.model).items():
        torch.testing.assert_close(tensor, weights(frozen.model)[name], atol=1e-6, rtol=1e-4)


def test_all_arms_train_on_the_same_positions(tmp_path):
    """Matched items: a group arm and an arm with critics see the same actor positions at the same step."""
    seen = {}
    for arm in ("rlp", "qs_ppo", "ntp"):
        run = trainer(settings(arm))
        original = run.actor.update

        def update(step, items, *rest, original=original, arm=arm):
            seen.setdefault(arm, []).append([item.item_id for item in items])
            return original(step, items, *rest)

        run.actor.update = update
        run.train(ResumeFolder(tmp_path / arm))
    assert seen["rlp"] == seen["qs_ppo"] == seen["ntp"] and len(seen["rlp"]) == 2


@pytest.mark.parametrize(("kind", "large"), [("fp32", False), ("bf16", True), ("int8", True)])
def test_the_mismatch_of_a_rounded_sampler_is_in_the_rows(tmp_path, kind, large):
    run = finished(settings("rlp", steps=1, rollout={"weights": kind}), tmp_path)
    row = run.rows[0]
    assert (row["sampling/logp_difference/max"] > 1e-4) == large
    assert abs(row["sampling/importance_ratio/mean"] - 1) < (0.2 if large else 1e-4)


def test_a_stale_sampler_ends_the_run(tmp_path):
    run = trainer(settings("rlp", steps=3))
    run.advance()
    run.engine.load_weights = lambda _: None
    with torch.no_grad():
        run.model.model.norm.weight *= 1.5
    with pytest.raises(UserError, match=r"step 2: sampler and trainer log-probabilities differ by"):
        run.train(ResumeFolder(tmp_path))


@pytest.mark.parametrize("arm", ["ntp", "rlp"])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, arm):
    chosen = settings(arm, steps=4, training={"checkpoint_every": 2})
    whole = finished(chosen, tmp_path / "whole")
    killed = trainer(chosen)
    resume = ResumeFolder(tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        stop_in_window(killed, 3).train(resume)
    again = trainer(chosen)
    again.train(resume)
    assert again.rows == whole.rows
    assert equal(weights(again.model), weights(whole.model))


def stop_in_window(run, window: int):
    """Make `run` die at the start of a window."""
    advance = run.advance

    def dying():
        if len(run.rows) == window:
            raise KeyboardInterrupt
        return advance()

    run.advance = dying
    return run


def test_group_windows_cost_what_the_model_says():
    chosen = settings("rlp")
    run = trainer(chosen)
    row = run.advance()
    n, g, epochs = chosen.sizes.n_act, chosen.arm.group, chosen.arm.loss.epochs
    assert predicted_cost(chosen, row) == g * n * (2 + 1 + 3 * epochs) + n
    assert run.timing[0]["t_window"] == pytest.approx(
        sum(v for k, v in run.timing[0].items() if k.startswith("t_") and k != "t_window"), rel=1e-6
    )


@pytest.mark.parametrize("agg", ["const", "token_mean", "seq_mean"])
def test_token_weights(agg):
    """The measure of the actions; padding has none (T25)."""
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    d = token_weights(mask, agg)
    assert (d[~mask] == 0).all()
    expected = {"const": 1 / 8, "token_mean": 1 / 5}.get(agg)
    if expected:
        torch.testing.assert_close(d[mask], torch.full((5,), expected))
    else:
        torch.testing.assert_close(d.sum(1), torch.tensor([0.5, 0.5]))
