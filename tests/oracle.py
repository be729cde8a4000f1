"""The slow, obvious form of every method, written from the paper in plain torch: one user, one row after the other.

It shares nothing with the package but weights, settings and batches: embeddings, rate network, memory, inner loop, row
losses and predictions are written out here, and gradients are left to autograd. `ChoiceOracle` is for head=choice,
where a user's rows are all items of the batch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paml.data.schema import Kind
from paml.episodes.batches import RowBlock, TensorBatch
from paml.episodes.features import Features
from paml.methods.learner import Learner
from paml.training.recipe import Recipe

CLICK_WEIGHTS = {0.0: 0.1, 1.0: 0.9}  # Sec. D.6
FULL_WEIGHT = 5  # of the user prior, which is ours
MIN_VARIANCE = 1e-6  # of ridge's prior, which is ours


@dataclass
class OracleResult:
    """Per user: query loss, outputs and predictions, the regulariser's gradient norm and rate; row losses at theta."""

    query_loss_B: Tensor
    outputs: list[Tensor]
    predictions: list[Tensor]
    gradient_norm_B: Tensor
    rate: list[Tensor] | list[list[Tensor]]
    row_losses: list[Tensor]


class Oracle:
    """One method on one batch."""

    def __init__(self, method: str, learner: Learner, batch: TensorBatch, recipe: Recipe) -> None:
        self.method, self.learner, self.batch, self.recipe = method, learner, batch, recipe
        network = learner.network
        target = network.inputs.schema.target
        self.levels = target.levels
        self.head = recipe.head if recipe.head != "auto" else "click" if target.kind == "click" else "value"
        self.outputs = {"value": 1, "choice": 1, "classes": len(self.levels), "click": 2}[self.head]
        decision = network.decision
        self.theta = [torch.cat([rows, shared]) for rows, shared in zip(decision.rows, decision.shared, strict=True)]
        self.users = self._embedded(network.user, batch.users)
        self.item_vectors, self.item_biases, self.choices = self._items()

    # Embeddings (Fig. 2 and D.2): a look-up per field, the mean of a list's values, a projected number, side by side.

    def _embedded(self, embedder: nn.Module, features: Features, *, summed: bool = False) -> list[Tensor]:
        rows = []
        for n in range(features.count):
            parts = [self._field(embedder, field.name, field.kind, features, n) for field in embedder.fields]
            rows.append((sum(parts) if summed else torch.cat(parts)) if parts else self.theta[0].new_zeros(0))
        return rows

    def _field(self, embedder: nn.Module, name: str, kind: Kind, features: Features, n: int) -> Tensor:
        if kind is Kind.NUMERIC:
            weight, bias = embedder.numbers[f"field_{name}"]
            return weight * float(features.numbers[name][n]) + bias
        table = embedder.tables[f"field_{name}"]
        if kind is not Kind.MULTI:
            return table[int(features.codes[name][n])]
        codes, starts = features.lists[name]
        values = codes[starts[n] : starts[n + 1] if n + 1 < features.count else len(codes)].tolist()
        total = sum((table[code] for code in values), torch.zeros_like(table[0]))
        count = max(len(values), 1)
        return total / (count if self.recipe.multi_pooling == "mean" else math.sqrt(count))

    def _items(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Of every distinct item: vector, bias of the outputs, and what choosing it says about a user."""
        recipe, items, batch = self.recipe, self.learner.network.items, self.batch
        none = [self.theta[0].new_zeros(self.outputs)] * batch.items.count
        if recipe.network == "factors":
            # one vector, the sum of the item's own and its fields'; unknown items have none of their own
            whole = self._embedded(items.fields, batch.items, summed=True)
            numbers = items.known.codes_I[batch.item_N].tolist()
            whole = [fields + items.own[k] if k else fields for fields, k in zip(whole, numbers, strict=True)]
            width = [recipe.item_embedding, self.outputs, recipe.prior_from_items]
            vectors, biases, choices = zip(*(vector.split(width) for vector in whole), strict=True)
            return list(vectors), list(biases), list(choices)
        vectors, biases = self._embedded(items.fields, batch.items), none
        if recipe.item_embedding or recipe.item_bias:
            numbers = items.known.codes_I[batch.item_N].tolist()
            if recipe.item_embedding:
                vectors = [torch.cat([vector, items.own[k]]) for vector, k in zip(vectors, numbers, strict=True)]
            if recipe.item_bias:
                biases = [items.bias[k] if k else none[0] for k in numbers]
        return vectors, biases, none

    def _prior(self, b: int) -> Tensor | None:
        """m_i: P(profile) + Q sum_j g_j / sqrt(n + 5), (D + 1, K)."""
        prior, parts = self.learner.network.user_prior, []
        if self.recipe.prior_from_profile:
            parts.append(self._embedded(prior.profile, self.batch.users, summed=True)[b])
        if self.recipe.prior_from_items:
            chosen = [self.choices[item] for item in self._chosen(self.batch.support, b)]
            total = sum(chosen, torch.zeros_like(self.choices[0]))
            parts.append(total / math.sqrt(len(chosen) + FULL_WEIGHT) @ prior.choice)
        return sum(parts).view(-1, self.outputs) if parts else None

    @staticmethod
    def _chosen(block: RowBlock, b: int) -> list[int]:
        return block.index_BR[b][block.mask_BR[b] > 0].tolist()

    def _rows(self, block: RowBlock, b: int) -> tuple[Tensor, list[float], Tensor]:
        """Inputs of the first layer (item, context, user, and a 1 for the bias), targets, and offsets of outputs."""
        width, h_H, prior = block.index_BR.shape[1], self.users[b], self._prior(b)
        contexts = [] if block.context is None else self._embedded(self.learner.network.context, block.context)
        inputs, offsets, one = [], [], h_H.new_ones(1)
        for r in range(width):
            if not block.mask_BR[b, r]:
                continue
            item = int(block.index_BR[b, r])
            vector, offset = self.item_vectors[item], self.item_biases[item]
            inputs.append(torch.cat([vector, *([contexts[b * width + r]] if contexts else []), h_H, one]))
            offsets.append(offset if prior is None else offset + torch.cat([vector, one]) @ prior)
        return torch.stack(inputs), block.y_BR[b][block.mask_BR[b] > 0].tolist(), torch.stack(offsets)

    # Heads (D.5, D.6): what the outputs of a row mean.

    def row_loss(self, out_K: Tensor, y: float) -> Tensor:
        if self.head == "value":
            return (y - out_K[0]) ** 2
        log_p_K = out_K - out_K.exp().sum().log()
        if self.head == "classes":
            return -log_p_K[self.levels.index(y)]
        return -CLICK_WEIGHTS[y] * log_p_K[int(y)]

    def losses(self, out_RK: Tensor, y_R: list[float]) -> Tensor:
        return torch.stack([self.row_loss(out_K, y) for out_K, y in zip(out_RK, y_R, strict=True)])

    def prediction(self, out_K: Tensor) -> Tensor:
        if self.head == "value":
            return out_K[0]
        p_K = out_K.exp() / out_K.exp().sum()
        if self.head == "click":  # as often as people click: the loss counts clicks nine times
            clicked, other = p_K[1] / CLICK_WEIGHTS[1.0], p_K[0] / CLICK_WEIGHTS[0.0]
            return clicked / (clicked + other)
        return sum(p * level for p, level in zip(p_K, self.levels, strict=True))

    # Rates: the listing in D.2 (FC 64, ReLU, FC 32, FC 1), and the memory of Alg. 2.

    def _alpha(self, source: nn.Module, h_H: Tensor) -> Tensor:
        (w1, w2, w3), (b1, b2, b3) = source.weights, source.biases
        assert [len(b1), len(b2), len(b3)] == [64, 32, 1]
        lremb = torch.relu(h_H @ w1 + b1)
        lremb = lremb @ w2 + b2
        return self.recipe.rate_scale * torch.sigmoid(lremb @ w3 + b3)[0]

    def _similar(self, h_H: Tensor, user: int | None, neighbours: int) -> Tensor:
        """sum_k s_k alpha_k / (sum_k s_k + 1e-5), s = exp(-delta |h - h_k|^2), over the nearest nodes of others."""
        memory = self.learner.rates.memory
        nodes = [m for m in range(int(memory.count)) if memory.user_M[m] != (-1 if user is None else user)]
        distance = {m: ((h_H - memory.keys_MH[m]) ** 2).sum() for m in nodes}
        over, under = 0.0, 1e-5
        for m in sorted(nodes, key=lambda m: distance[m].item())[:neighbours]:
            s = torch.exp(-self.recipe.kernel_delta * distance[m])
            over, under = over + s * memory.values_M[m], under + s
        return over / under

    def rate(self, b: int, *, training: bool) -> Tensor | list[Tensor]:
        """alpha of a user; of Meta-SGD, one for each weight."""
        rates, recipe = self.learner.rates, self.recipe
        if self.method in ("melu", "transfer"):
            return self.theta[0].new_tensor(recipe.inner_rate)
        if self.method == "meta_sgd":
            return [torch.cat([rows, shared]) for rows, shared in zip(rates.rows, rates.shared, strict=True)]
        if self.method != "at_paml":
            return self._alpha(rates, self.users[b])
        user, k = (int(self.batch.user_B[b]), recipe.neighbours) if training else (None, recipe.neighbours_inference)
        return self._alpha(rates.own, self.users[b]) + self._similar(self.users[b], user, k)

    # The inner loop (Eq. 1), or the closed form.

    @staticmethod
    def _forward(weights: list[Tensor], x: Tensor, offset: Tensor) -> Tensor:
        z = x @ weights[0]
        for w in weights[1:]:
            z = torch.cat([z.relu(), z.new_ones(len(z), 1)], dim=1) @ w
        return z + offset

    def _gradient_steps(
        self, x: Tensor, y: list[float], offset: Tensor, rate: Tensor | list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Steps on the mean (or with a pseudo-count c: sum / (n + c)) of the losses, and the first gradient's norm."""
        weights, norm = self.theta, x.new_zeros(())
        rows = len(y) + (self.learner.solver.log_pseudo_count.exp() if self.recipe.pseudo_count else 0)
        for step in range(self.recipe.inner_steps):
            loss = self.losses(self._forward(weights, x, offset), y).sum() / rows
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            if self.recipe.first_order:
                grads = tuple(grad.detach() for grad in grads)
            if step == 0:
                norm = torch.stack([(grad**2).sum() for grad in grads]).sum()
            rates = [rate] * len(weights) if isinstance(rate, Tensor) else rate
            weights = [w - r * grad for w, r, grad in zip(weights, rates, grads, strict=True)]
        return weights, norm

    def _closed_form(self, x: Tensor, y: list[float], offset: Tensor, variance: Tensor) -> list[Tensor]:
        """Newton's method on sum of losses + |d|^2 / (2 variance), gradient and Hessian by autograd."""
        free, level = len(self.learner.network.decision.rows[-1]), self.learner.solver.level
        variance = variance.clamp(min=MIN_VARIANCE)

        def moved(d: Tensor) -> list[Tensor]:
            """The last output's weights of the inputs that differ by row, and its bias, moved by d."""
            rows = torch.tensor([*range(free), len(self.theta[-1]) - 1])
            change = torch.zeros_like(self.theta[-1])
            change = change.index_put((rows, torch.full_like(rows, -1)), torch.cat([d[:-1], level * d[-1:]]))
            return [*self.theta[:-1], self.theta[-1] + change]

        def penalised(d: Tensor) -> Tensor:
            return self.losses(self._forward(moved(d), x, offset), y).sum() + (d**2).sum() / variance / 2

        d = x.new_zeros(free + 1)
        for _ in range(self.recipe.inner_steps):
            point = d.detach().requires_grad_() if not d.requires_grad else d
            (slope,) = torch.autograd.grad(penalised(point), point, create_graph=True)
            hessian_FF = torch.autograd.functional.hessian(penalised, point, create_graph=True)
            d = d - torch.linalg.solve(hessian_FF, slope)
        return moved(d)

    def run(self, *, training: bool = True) -> OracleResult:
        losses, outputs, predictions, norms, rates, row_losses = [], [], [], [], [], []
        for b in range(len(self.users)):
            rate = self.rate(b, training=training)
            x, y, offset = self._rows(self.batch.support, b)
            norm = x.new_zeros(())
            if self.method == "ridge":
                assert isinstance(rate, Tensor)
                weights = self._closed_form(x, y, offset, rate)
            else:
                weights, norm = self._gradient_steps(x, y, offset, rate)
            xq, yq, offset_q = self._rows(self.batch.query, b)
            out = self._forward(weights, xq, offset_q)
            losses.append(self.losses(out, yq).mean())
            outputs.append(out)
            predictions.append(torch.stack([self.prediction(out_K) for out_K in out]))
            norms.append(norm)
            rates.append(rate)
            for xs, ys, offsets in ((x, y, offset), (xq, yq, offset_q)):
                row_losses.append(self.losses(self._forward(self.theta, xs, offsets), ys))
        return OracleResult(torch.stack(losses), outputs, predictions, torch.stack(norms), rates, row_losses)

    def objective(self, result: OracleResult | None = None) -> Tensor:
        """The meta-loss of the method, of a `result` in training if there is one."""
        result = result or self.run()
        if self.method == "transfer":
            return torch.cat(result.row_losses).mean()
        if self.method == "reg_paml":
            rate_B = torch.stack([rate for rate in result.rate if isinstance(rate, Tensor)])
            return (result.query_loss_B + self.recipe.gamma * result.gradient_norm_B * rate_B.abs()).mean()
        return result.query_loss_B.mean()


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
        losses, outputs, norms, rates, row_losses = [], [], [], [], []
        for b in range(len(self.users)):
            rate, norm, x_NC, offset_N = (
                self.rate(b, training=training),
                torch.zeros(()),
                self._inputs(b),
                self._offset(b),
            )
            if self.method == "ridge":
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
        return loss / count
