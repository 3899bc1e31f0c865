"""A training step in mixed precision, from accumulation to update, and a run of such steps."""

import torch
from torch import nn
from torch.amp import autocast
from torch.nn.functional import cross_entropy

from helpers import digits


def small_net(seed=0):
    """4,810 parameters, so that short numbers on a CPU take no time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def backward(model, scaler, batches, kind, weight=1.0):
    """Accumulate the gradients of all batches, multiplied by the scaler's scale."""
    for images, labels in batches:
        with autocast(images.device.type, dtype=kind, enabled=kind != torch.float32):
            loss = weight * cross_entropy(model(images), labels) / len(batches)
        scaler.scale(loss).backward()


def step(model, optimizer, scaler, batches, kind, weight=1.0, max_norm=None):
    """One optimizer step; nothing is clipped unless `max_norm` is given."""
    optimizer.zero_grad()
    backward(model, scaler, batches, kind, weight)
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


def train(model, scaler, kind, weight=1.0, epochs=12):
    """Train on digits, and return the scale before each step and after the last."""
    device = next(model.parameters()).device
    images, labels = (whole.to(device) for whole in digits()[0].tensors)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    order, scales = torch.Generator().manual_seed(0), [scaler.get_scale()]
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(128)[:11]:
            step(model, optimizer, scaler, [(images[batch], labels[batch])], kind, weight)
            scales.append(scaler.get_scale())
    return scales


def passed_back(model, images, labels):
    """The gradients at the outputs of all layers, those that are not zero, in one tensor."""
    outputs = [images]
    for layer in model:
        outputs.append(layer(outputs[-1]))
        outputs[-1].retain_grad()
    cross_entropy(outputs[-1], labels).backward()
    found = torch.cat([output.grad.flatten() for output in outputs[1:]])
    return found[found != 0]
