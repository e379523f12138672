# SPDX-License-Identifier: Apache-2.0
"""torchvox train: interrupts, and which of its files goes where."""

import shlex

import pytest
import torch

pytest.importorskip("lightning", reason="the extra train is not installed")

CONFIG = "pointnet2_cls_shapes_small"
SMALL = ("data.train_size=32", "data.val_size=32", "data.points=128", "train.epochs=2")


@pytest.fixture
def interrupted_at(monkeypatch):
    """Interrupts runs at the start of an epoch, None for no more."""
    from lightning.pytorch import Callback

    from torchvox.train import runs

    class Interrupt(Callback):
        epoch = None

        def on_train_epoch_start(self, trainer, *_):
            if trainer.current_epoch == self.epoch:
                raise KeyboardInterrupt

    callback = Interrupt()
    monkeypatch.setattr(runs, "screen", lambda: [callback])

    def at(epoch):
        callback.epoch = epoch

    return at


def test_an_interrupted_run_says_how_it_goes_on(torchvox_cli, interrupted_at, tmp_path):
    import signal

    interrupted_at(0)
    first = torchvox_cli("train", CONFIG, *SMALL, "-o", "a")
    first.assert_one_sentence(130, "before its first epoch ended", "another --output")
    assert "training on the CPU" in first.out and "32 samples, 32 for validation" in first.out
    assert torchvox_cli("train", "a/config.yaml", "-o", "a").code == 130  # it may begin again
    interrupted_at(1)
    second = torchvox_cli("train", CONFIG, *SMALL, "-o", "my run")
    second.assert_one_sentence(130, "interrupted after epoch 1 of 2", "resume with: torchvox train")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted_at(None)
    command = shlex.split(second.err.split("resume with: torchvox ")[1])
    torchvox_cli(*command).ok()
    # What each command takes, and what the others say.
    model, best = tmp_path / "my run" / "model.pt", tmp_path / "my run" / "best.ckpt"
    for source in (best, model):
        torchvox_cli("export", "-m", source).ok("the bits of the model")
    programs = [torch.jit.load(path.with_suffix(".script.pt")) for path in (best, model)]
    weights = [program.state_dict() for program in programs]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    (tmp_path / "a.xyz").write_text("0 0 0\n1 1 1\n0 1 0\n")
    wrong = torchvox_cli("predict", "a.xyz", "--model", model)
    wrong.assert_one_sentence(1, "model for torchvox export and detect", "best.ckpt")
    torchvox_cli("predict", "a.xyz", "--model", best).ok()


def test_only_what_can_be_trained_is_offered(torchvox_cli, tmp_path):
    result = torchvox_cli("train", "nosuch")
    result.assert_one_sentence(2, "configuration 'nosuch' is unknown", CONFIG)
    result = torchvox_cli("train", "center_world_small", "data.kind=folder", "-o", "runs/bad")
    assert result.code == 2 and not (tmp_path / "runs" / "bad").exists()  # nothing is left
    assert "pointpillars_nuscenes_multihead" not in result.err
