"""Frameworks tell what they do: each integration in its real framework, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.telemetry.slot import SlotView

Rank = Callable[..., SlotView]

TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
for _ in range({steps}):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    other.step()
"""


def test_torchrun_hook_counts_the_steps_of_an_unchanged_script(rank: Rank, tmp_path: Path) -> None:
    """Ten optimizer steps are ten steps, an optimizer that steps beside it counts nothing, arguments arrive."""
    script = 'import sys\nassert sys.argv == ["train.py", "--lr", "3"], sys.argv\n'
    (tmp_path / "train.py").write_text(script + TRAIN.format(optimizer="SGD", steps=10))
    view = rank("-m", "holdfast.integrations.torchrun", "train.py", "--lr", "3")
    # The first one only shows where counting begins: its own beginning was not seen.
    assert (view.step_ended, view.steps, view.step_begun) == (10, 9, 11)


def test_the_step_is_taken_from_an_optimizer_that_was_resumed(rank: Rank) -> None:
    """Adam's state knows 40 steps: the next one that ends is step 41."""
    view = rank(
        "import torch\nfrom holdfast.integrations.optimizer_torch import StepCounter\nStepCounter().install()\n"
        "model = torch.nn.Linear(4, 1)\noptimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "for p in model.parameters():\n"
        "    optimizer.state[p] = {'step': torch.tensor(40.0), 'exp_avg': torch.zeros_like(p), 'exp_avg_sq': torch.zeros_like(p)}\n"
        "optimizer.step()\n"
    )
    assert (view.step_ended, view.step_begun) == (41, 42)


def test_accelerate_tells_steps_and_saves(rank: Rank, tmp_path: Path) -> None:
    """Six steps through the accelerator, a save after the fourth: durable, and its cost counted."""
    view = rank(
        "import torch\nfrom accelerate import Accelerator\nfrom holdfast.integrations.accelerate import watch\n"
        "accelerator = Accelerator(cpu=True)\ncounter = watch(accelerator)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))\n"
        "for step in range(6):\n"
        "    accelerator.backward(model(torch.ones(2, 4)).sum())\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
        "    if step == 3:\n        accelerator.save_state('saved')\n"
    )
    assert (view.step_ended, view.checkpoint_durable, view.saves) == (6, 4, 1)
    assert (tmp_path / "saved" / "model.safetensors").is_file()


LIGHTNING = """
import lightning.pytorch as pl, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from torch.utils.data import DataLoader
from holdfast import telemetry
from holdfast.integrations.lightning import HoldfastCallback

said = []
tell = telemetry.checkpoint
telemetry.checkpoint = lambda step, durable: (said.append((step, durable)), tell(step, durable=durable))

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def validation_step(self, batch, index):
        self.log("loss", self.layer(batch).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.randn(64, 4)
trainer = pl.Trainer(max_steps=12, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False,
    enable_progress_bar=False, enable_model_summary=False, plugins={plugins},
    callbacks=[ModelCheckpoint("saved", every_n_train_steps=4, save_top_k=-1), HoldfastCallback()])
trainer.fit(Module(), DataLoader(data, batch_size=2), DataLoader(data, batch_size=32))
print(said)
{check}
"""


def test_lightning_tells_steps_evaluation_and_saves(rank: Rank) -> None:
    """Accumulated batches are one step; three saves are durable, and only then; the loss arrives."""
    check = "assert said == [(4, True), (8, True), (12, True)], said"
    view = rank(LIGHTNING.format(plugins="[]", check=check))
    assert (view.step_ended, view.steps, view.checkpoint_durable, view.saves) == (12, 12, 12, 3)
    assert view.loss is not None
    assert view.phase == "shutdown"


def test_an_asynchronous_save_of_lightning_is_durable_only_when_written(rank: Rank) -> None:
    """While its thread writes (held up here by an event) the save is staged; it is durable after."""
    check = (
        "assert gate.wait(0) and said.index((4, False)) < said.index((4, True)), said\n"
        "assert sorted(step for step, durable in said if durable) == [4, 8, 12], said\n"
    )
    slow = (
        "import threading\nfrom lightning.pytorch.plugins.io import TorchCheckpointIO as Real\n"
        "gate = threading.Event()\n"
        "class Slow(Real):\n"
        "    def save_checkpoint(self, *args, **kwargs):\n"
        "        assert gate.wait(30)\n"
        "        super().save_checkpoint(*args, **kwargs)\n"
    )
    code = slow + LIGHTNING.format(plugins="[AsyncCheckpointIO(Slow())]", check=check)
    opens = (
        "class Opens(pl.Callback):\n"
        "    def on_train_batch_start(self, trainer, module, batch, index):\n"
        "        if trainer.global_step == 5 and not gate.is_set():  # two batches are one step\n"
        "            assert said == [(4, False)], said\n"
        "            gate.set()\n"
    )
    code = code.replace("data = torch.randn", opens + "data = torch.randn").replace(
        "HoldfastCallback()]", "HoldfastCallback(), Opens()]"
    )
    assert rank(code).checkpoint_durable == 12


def test_hugging_face_tells_steps_evaluation_and_saves(rank: Rank, tmp_path: Path) -> None:
    """The example as it ships: 20 steps, saves at 10 and 20, durable once they are on disk."""
    example = Path(__file__).parents[2] / "examples" / "transformers" / "train.py"
    view = rank(str(example), "--steps", "20", "--checkpoint-dir", str(tmp_path / "saved"))
    assert (view.step_ended, view.steps, view.checkpoint_durable, view.saves) == (20, 20, 20, 2)
    assert view.loss is not None
    assert view.phase == "shutdown"


def test_hugging_face_tells_the_accuracy_of_an_evaluation(rank: Rank) -> None:
    """As the script's `compute_metrics` gave it; an evaluation without one changes nothing."""
    view = rank(
        "from types import SimpleNamespace as Control\n"
        "from holdfast.integrations.transformers import HoldfastCallback\n"
        "for metrics in ({'eval_accuracy': 0.5}, {'eval_loss': 1.0}):\n"
        "    HoldfastCallback().on_evaluate(None, None, Control(should_save=False), metrics=metrics)\n"
    )
    assert view.accuracy == 0.5


def test_spans_of_one_logger_become_steps_phases_and_saves(rank: Rank) -> None:
    """A resumed loop from iteration 30: five iterations, one synchronous save, phases as spans open and close."""
    view = rank(
        "from nv_one_logger.api.config import OneLoggerConfig\n"
        "from nv_one_logger.core.attributes import Attributes\n"
        "from nv_one_logger.recorder.default_recorder import ExportCustomizationMode\n"
        "from nv_one_logger.training_telemetry.api import callbacks as one\n"
        "from nv_one_logger.training_telemetry.api.checkpoint import CheckPointStrategy\n"
        "from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig\n"
        "from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider\n"
        "from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName as Name\n"
        "from holdfast.integrations.one_logger import HoldfastExporter\n"
        "base = OneLoggerConfig(application_name='a', world_size_or_fn=1, session_tag_or_fn='s', error_handling_strategy='propagate_exceptions')\n"
        "training = TrainingTelemetryConfig(perf_tag_or_fn='p', log_every_n_train_iterations=10, global_batch_size_or_fn=8,\n"
        "    flops_per_sample_or_fn=1, is_log_throughput_enabled_or_fn=False, save_checkpoint_strategy=CheckPointStrategy.SYNC)\n"
        "provider = TrainingTelemetryProvider.instance().with_base_config(base).with_exporter(HoldfastExporter())\n"
        "provider.with_export_customization(ExportCustomizationMode.BLACKLIST_SPANS, [Name.DATA_LOADING]).configure_provider()\n"
        "one.on_app_start()\nprovider.set_training_telemetry_config(training)\n"
        "one.on_load_checkpoint_start()\none.on_load_checkpoint_end()\n"
        "one.on_train_start(train_iterations_start=30, train_samples_start=0, train_iterations_target_or_fn=100)\n"
        "for i in range(31, 36):\n"
        "    one.on_training_single_iteration_start()\n"
        "    one.on_training_single_iteration_end()\n"
        "    if i == 33:\n"
        "        one.on_save_checkpoint_start(global_step=i)\n"
        "        one.on_save_checkpoint_success(global_step=i)\n"
        "        one.on_save_checkpoint_end()\n"
        "one.on_train_end()\none.on_app_end()\n"
    )
    assert (view.step_ended, view.steps, view.checkpoint_durable, view.saves) == (35, 5, 33, 1)
    assert view.phase == "shutdown"
