"""The oracle of head=choice, where a user's rows are all items of the batch, one user after the other."""

from collections.abc import Iterable

import torch
from torch import Tensor

from paml.episodes.batches import RowBlock
from paml.testing.oracle import MIN_VARIANCE, Oracle, OracleResult


class ChoiceOracle(Oracle):
    """A choice among the batch's N items: p_j = exp(out_j) / sum_i exp(out_i), the loss of weights k is their mean."""

    def _inputs(self, b: int) -> Tensor:
        """All items with the user: the first layer's inputs, (N, C)."""
        own = torch.cat([self.users[b], self.users[b].new_ones(1)])
        return torch.stack([torch.cat([vector, own]) for vector in self.item_vectors])

    def _offset(self, b: int) -> Tensor:
        """Of all items, (N): bias (1 + n)^c for n known rows, and the prior."""
        prior, power = self._prior(b), self.learner.network.bias_power
        rows, one, offsets = len(self._chosen(self.batch.support, b)), self.theta[0].new_ones(1), []
        for vector, bias in zip(self.item_vectors, self.item_biases, strict=True):
            offset = bias[0] if power is None else bias[0] * (1 + rows) ** power
            offsets.append(offset if prior is None else offset + (torch.cat([vector, one]) @ prior)[0])
        return torch.stack(offsets)

    def _corrected(self, value_N: Tensor) -> Tensor:
        """Less the log chance of being among the batch's items at all, where these are a sample."""
        chance_N = self.batch.log_chance_N
        return value_N if chance_N is None else value_N - chance_N

    def _known(self, b: int) -> dict[int, Tensor]:
        """k of the user's known rows, by item: learned for every level."""
        block, weight_L = self.batch.support, self.learner.known_weights.log_weight_L.exp()
        return self._summed((item, weight_L[self.levels.index(y)]) for item, y in self._pairs(block, b))

    def _wanted(self, b: int, *blocks: RowBlock) -> dict[int, Tensor]:
        """k of rows to be predicted, by item: 1 if liked."""
        low, high, less = self.levels[0], self.levels[-1], self.recipe.unliked_weight
        liked = self.recipe.liked or low + 0.75 * (high - low)
        pairs = [pair for block in blocks for pair in self._pairs(block, b)]
        return self._summed((item, self.theta[0].new_tensor(1.0 if y >= liked else less)) for item, y in pairs)

    @staticmethod
    def _pairs(block: RowBlock, b: int) -> list[tuple[int, float]]:
        there = block.mask_BR[b] > 0
        return list(zip(block.index_BR[b][there].tolist(), block.y_BR[b][there].tolist(), strict=True))

    @staticmethod
    def _summed(weights: Iterable[tuple[int, Tensor]]) -> dict[int, Tensor]:
        total: dict[int, Tensor] = {}
        for item, k in weights:
            total[item] = total[item] + k if item in total else k
        return total

    def _entropy(self, out_N: Tensor, k: dict[int, Tensor], excluded: Iterable[int] = ()) -> Tensor:
        """- sum_j k_j log p_j, without candidates that are excluded."""
        left_out = set(excluded)
        log_sum = out_N[[j for j in range(len(out_N)) if j not in left_out]].exp().sum().log()
        return sum((k[j] * (log_sum - out_N[j]) for j in k if j not in left_out), out_N.new_zeros(()))

    def _out(self, weights: list[Tensor], x_NC: Tensor, offset_N: Tensor) -> Tensor:
        return self._forward(weights, x_NC, offset_N.unsqueeze(-1))[:, 0]

    def _stepped(
        self, x_NC: Tensor, k: dict[int, Tensor], offset_N: Tensor, rate: Tensor | list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Gradient steps on the entropy of the known rows (1 + n)^p / (n + c), and the first gradient's norm."""
        weights, norm, pseudo = self.theta, x_NC.new_zeros(()), self.learner.solver.log_pseudo_count
        count = sum(k.values(), norm)
        divisor = (count if pseudo is None else count + pseudo.exp()) / (1 + count) ** self.learner.solver.count_power
        for step in range(self.recipe.inner_steps if k else 0):
            loss = self._entropy(self._out(weights, x_NC, offset_N), k) / divisor
            (grad,) = torch.autograd.grad(loss, weights, create_graph=True)
            grad = grad.detach() if self.recipe.first_order else grad
            norm = (grad**2).sum() if step == 0 else norm
            weights = [weights[0] - (rate if isinstance(rate, Tensor) else rate[0]) * grad]
        return weights, norm

    def _solved(self, x_NC: Tensor, k: dict[int, Tensor], offset_N: Tensor, variance: Tensor) -> list[Tensor]:
        """d + (n Cov(z) + 1 / alpha)^-1 times the slope of sum_j k_j log p_j - |d|^2 / (2 alpha), repeated."""
        z_ND, count = torch.stack(self.item_vectors), sum(k.values(), x_NC.new_zeros(()))
        p_N = self._corrected(torch.cat(self.item_biases)).exp()
        p_N = p_N / p_N.sum()
        mean_D = sum(p * z for p, z in zip(p_N, z_ND, strict=True))
        spread_DD = sum(p * torch.outer(z - mean_D, z - mean_D) for p, z in zip(p_N, z_ND, strict=True))
        alpha = variance.clamp(min=MIN_VARIANCE) * (1 + count) ** self.learner.solver.count_power
        inverse_DD = torch.linalg.inv(count * spread_DD + torch.eye(len(mean_D)) / alpha)
        d_D, base_N = torch.zeros_like(mean_D).requires_grad_(), self._out(self.theta, x_NC, offset_N)
        for _ in range(self.recipe.inner_steps):
            value = -self._entropy(base_N + z_ND @ d_D, k) - (d_D**2).sum() / alpha / 2
            (slope_D,) = torch.autograd.grad(value, d_D, create_graph=True)
            d_D = d_D + inverse_DD @ slope_D
        none = x_NC.new_zeros(x_NC.shape[1] - len(d_D))
        return [self.theta[0] + torch.cat([d_D, none]).unsqueeze(-1)]

    def run(self, *, training: bool = True) -> OracleResult:
        """Every user of the batch, in training or in use."""
        losses, outputs, norms, rates, row_losses = [], [], [], [], []
        for b in range(len(self.users)):
            rate, norm, x_NC, offset_N = (
                self.rate(b, training=training),
                torch.zeros(()),
                self._inputs(b),
                self._offset(b),
            )
            if self.parts.solver == "closed_form":
                assert isinstance(rate, Tensor)
                weights = self._solved(x_NC, self._known(b), self._corrected(offset_N), rate)
            else:
                weights, norm = self._stepped(x_NC, self._known(b), self._corrected(offset_N), rate)
            out_N, known = self._out(weights, x_NC, offset_N), self._chosen(self.batch.support, b)
            wanted = self._wanted(b, self.batch.query)
            count = sum(k for j, k in wanted.items() if j not in known)
            losses.append(self._entropy(self._corrected(out_N), wanted, known) / (count or 1.0))
            outputs.append(out_N)
            norms.append(norm)
            rates.append(rate)
            both, plain_N = self._wanted(b, self.batch.support, self.batch.query), self._out(self.theta, x_NC, offset_N)
            total = sum(both.values(), plain_N.new_zeros(()))
            row_losses.append(torch.stack([self._entropy(self._corrected(plain_N), both), total]))
        return OracleResult(torch.stack(losses), outputs, outputs, torch.stack(norms), rates, row_losses)

    def objective(self, result: OracleResult | None = None) -> Tensor:
        """The meta-loss of the method; transfer's is over all rows at theta, support and query alike."""
        result = result or self.run()
        if self.method != "transfer":
            return super().objective(result)
        loss, count = torch.stack(result.row_losses).sum(dim=0)
        pooled: Tensor = loss / count
        return pooled
