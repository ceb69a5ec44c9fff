"""PPO's critic: predicts a rollout's reward from the policy's hidden state before each token.

One linear layer in float32, zero at the start, so that the first values are 0 and the first
advantages are the rewards. It has an optimizer and a rate of its own. It sends no gradient into the
policy: a value loss of another scale would pull the policy elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rft import config
from rft.algorithms.ppo import gae
from rft.trainer.packing import Layout


class Critic:
    def __init__(self, network: Any, lr: float, device: torch.device):
        self.head = torch.nn.Linear(network.config.get_text_config().hidden_size, 1, device=device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.parameters = list(self.head.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)

    def __call__(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Return N values."""
        return self.head(hidden_NE.detach().float()).squeeze(1)

    @torch.no_grad()
    def judge(
        self, hidden_NE: torch.Tensor, layout: Layout, section: config.Ppo
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return values, advantages and returns per token, before the step's first update."""
        values_N = self(hidden_NE)
        per_sample = torch.split(values_N.cpu(), [sample.num_own for sample in layout.samples])
        judged = [
            gae(sample.reward, values_T.double().numpy(), section.gamma, section.gae_lambda)
            for sample, values_T in zip(layout.samples, per_sample, strict=True)
        ]
        advantages, returns = (
            torch.tensor(np.concatenate(arrays), dtype=torch.float32, device=values_N.device)
            for arrays in zip(*judged, strict=True)
        )
        return values_N, advantages, returns

    def learn(self, clip_grad: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, clip_grad)
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
