"""One line for each training framework that makes it tell Holdfast what it does: steps, phases, durable checkpoints.

    from holdfast.integrations.lightning import HoldfastCallback       Trainer(callbacks=[HoldfastCallback()])
    from holdfast.integrations.transformers import HoldfastCallback    Trainer(..., callbacks=[HoldfastCallback()])
    from holdfast.integrations.accelerate import watch                 watch(accelerator)
    from holdfast.integrations.one_logger import HoldfastExporter      provider.with_exporter(HoldfastExporter())
    torchrun -m holdfast.integrations.torchrun train.py                no line: the optimizer's steps are counted

Megatron-LM and NeMo need none: their log lines are read. Each module imports its own framework only, so that this
package costs nothing. A checkpoint counts as durable once it is on disk (fsync), asynchronous ones not before.
Like all of `holdfast.telemetry`, nothing here raises into the training, and without a launcher it does nothing.
"""
