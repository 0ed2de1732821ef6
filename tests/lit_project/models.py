"""Modules with the habits of public projects: a net, an optimizer and a schedule as arguments (as that for MNIST of
lightning-hydra-template), or a model that is made in `setup` and batches of token ids (as litgpt's)."""

import torch
from lightning import LightningModule
from torch import nn
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification.accuracy import Accuracy


class Net(nn.Module):
    def __init__(self, input_size: int = 8, width: int = 16, output_size: int = 2):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(input_size, width), nn.ReLU(), nn.Linear(width, output_size))

    def forward(self, x):
        return self.model(x)


class DigitsLitModule(LightningModule):
    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler = None,
        compile: bool = False,  # noqa: A002 - as there
    ):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.val_acc = Accuracy(task="multiclass", num_classes=2)
        self.train_loss, self.val_loss, self.val_acc_best = MeanMetric(), MeanMetric(), MaxMetric()

    def forward(self, x):
        return self.net(x)

    def on_train_start(self):
        self.val_loss.reset()
        self.val_acc_best.reset()

    def model_step(self, batch):
        x, y = batch
        logits = self.forward(x)
        return self.criterion(logits, y), torch.argmax(logits, dim=1), y

    def training_step(self, batch, batch_idx):
        loss, _, _ = self.model_step(batch)
        self.train_loss(loss)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, predictions, targets = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(predictions, targets)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def setup(self, stage):
        if self.hparams.compile and stage == "fit":
            self.net = torch.compile(self.net)

    def configure_optimizers(self):
        optimizer = self.hparams.optimizer(params=self.trainer.model.parameters())
        if self.hparams.scheduler is None:
            return {"optimizer": optimizer}
        scheduler = self.hparams.scheduler(optimizer=optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}


class LitLLM(LightningModule):
    """The model is made in `setup`, which throws away what an earlier call made."""

    def __init__(self, checkpoint_dir, tokenizer_dir=None, trainer_ckpt_path=None):
        super().__init__()
        self.checkpoint_dir = checkpoint_dir
        self.setups = 0

    def setup(self, stage):
        self.setups += 1
        self.model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch):
        loss = self.compute_loss(batch)
        self.log("validation_loss", loss, prog_bar=True)
        self.log("setups", float(self.setups))
        return loss

    def compute_loss(self, batch):
        logits = self.model(batch["input_ids"])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)]


class Line(LightningModule):
    """A weight that each step brings nearer to 1, with its distance as the loss: what comes out is known."""

    def __init__(self, lr: float = 0.5, start: float = 0.0, noise: float = 0.0, fail: str = "", **more):
        super().__init__()
        self.save_hyperparameters()
        self.weight = nn.Parameter(torch.tensor(float(start)) + noise * torch.randn(()))

    def training_step(self, batch, batch_idx):
        if self.hparams.fail == "crash" and self.global_step == 2:
            raise ValueError("no luck")
        if self.hparams.fail == "stop" and self.global_step == 2:
            self.trainer.should_stop = True
        return 0.5 * (self.weight - 1) ** 2

    def validation_step(self, batch, batch_idx):
        value = abs(self.weight - 1)
        broken = self.hparams.fail in ("nan", "inf") and self.global_step >= 4
        self.log("distance", torch.tensor(float(self.hparams.fail)) if broken else value)
        self.log("batches", float(batch[0].numel()), on_epoch=True, reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def build_line(lr: float):
    """A function in the place of a class."""
    return Line(lr)


def build_nothing():
    return nn.Linear(1, 1)
