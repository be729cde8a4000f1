"""The slow, obvious form of every method, written from the paper in plain torch: one user, one row after the other.

It shares nothing with the package but weights, settings and batches: embeddings, rate network, memory, inner loop, row
losses and predictions are written out here, and gradients are left to autograd. A method of somebody else's whose
rates, steps or meta-loss are not here needs a subclass that has them, written as plainly.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paml.data.schema import Kind
from paml.episodes.batches import RowBlock, TensorBatch
from paml.episodes.features import Features
from paml.methods.learner import Learner
from paml.methods.registry import find_method
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
    rate: list[Tensor | list[Tensor]]
    row_losses: list[Tensor]


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0)


class Oracle:
    """One method on one batch."""

    def __init__(self, method: str, learner: Learner, batch: TensorBatch, recipe: Recipe) -> None:
        self.method, self.batch, self.recipe = method, batch, recipe
        self.learner: Any = learner  # whose weights are read by their names
        self.parts = find_method(method)
        network = self.learner.network
        target = network.inputs.schema.target
        self.levels = target.levels
        self.head = recipe.head if recipe.head != "auto" else "click" if target.kind == "click" else "value"
        self.outputs = {"value": 1, "choice": 1, "classes": len(self.levels), "click": 2}[self.head]
        decision = network.decision
        self.theta = [torch.cat([rows, shared]) for rows, shared in zip(decision.rows, decision.shared, strict=True)]
        self.users = self._embedded(network.user, batch.users)
        self.item_vectors, self.item_biases, self.choices = self._items()

    # Embeddings (Fig. 2 and D.2): a look-up per field, the mean of a list's values, a projected number, side by side.

    def _embedded(self, embedder: Any, features: Features, *, summed: bool = False) -> list[Tensor]:
        rows = []
        for n in range(features.count):
            parts = [self._field(embedder, field.name, field.kind, features, n) for field in embedder.fields]
            none = self.theta[0].new_zeros(0)
            rows.append((_total(parts) if summed else torch.cat(parts)) if parts else none)
        return rows

    def _field(self, embedder: Any, name: str, kind: Kind, features: Features, n: int) -> Tensor:
        if kind is Kind.NUMERIC:
            weight, bias = embedder.numbers[f"field_{name}"]
            number: Tensor = weight * float(features.numbers[name][n]) + bias
            return number
        table: Tensor = embedder.tables[f"field_{name}"]
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
            cut = [torch.split(vector, width) for vector in whole]
            return [vector for vector, _, _ in cut], [bias for _, bias, _ in cut], [choice for _, _, choice in cut]
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
        return _total(parts).view(-1, self.outputs) if parts else None

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
        """The loss of one row."""
        if self.head == "value":
            return (y - out_K[0]) ** 2
        log_p_K = out_K - out_K.exp().sum().log()
        if self.head == "classes":
            return -log_p_K[self.levels.index(y)]
        return -CLICK_WEIGHTS[y] * log_p_K[int(y)]

    def losses(self, out_RK: Tensor, y_R: list[float]) -> Tensor:
        """The losses of rows."""
        return torch.stack([self.row_loss(out_K, y) for out_K, y in zip(out_RK, y_R, strict=True)])

    def prediction(self, out_K: Tensor) -> Tensor:
        """What people see: a rating, or the chance of a click."""
        if self.head == "value":
            return out_K[0]
        p_K = out_K.exp() / out_K.exp().sum()
        if self.head == "click":  # as often as people click: the loss counts clicks nine times
            clicked, other = p_K[1] / CLICK_WEIGHTS[1.0], p_K[0] / CLICK_WEIGHTS[0.0]
            return clicked / (clicked + other)
        return _total([p * level for p, level in zip(p_K, self.levels, strict=True)])

    # Rates: the listing in D.2 (FC 64, ReLU, FC 32, FC 1), and the memory of Alg. 2.

    def personal(self, source: Any, h_H: Tensor) -> Tensor:
        """alpha'(h) of one user, by the layers of a rate source."""
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
        over, under = h_H.new_zeros(()), h_H.new_full((), 1e-5)
        for m in sorted(nodes, key=lambda m: distance[m].item())[:neighbours]:
            s = torch.exp(-self.recipe.kernel_delta * distance[m])
            over, under = over + s * memory.values_M[m], under + s
        return over / under

    def rate(self, b: int, *, training: bool) -> Tensor | list[Tensor]:
        """alpha of a user; of Meta-SGD, one for each weight."""
        rates, recipe = self.learner.rates, self.recipe
        if self.parts.rate == "fixed":
            return self.theta[0].new_tensor(recipe.inner_rate)
        if self.parts.rate == "per_parameter":
            return [torch.cat([rows, shared]) for rows, shared in zip(rates.rows, rates.shared, strict=True)]
        if self.parts.rate == "personal":
            return self.personal(rates, self.users[b])
        if self.parts.rate != "memory":
            raise NotImplementedError(f"write the rate '{self.parts.rate}' in a subclass")
        user, k = (int(self.batch.user_B[b]), recipe.neighbours) if training else (None, recipe.neighbours_inference)
        return self.personal(rates.own, self.users[b]) + self._similar(self.users[b], user, k)

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

    def adapted(
        self, x: Tensor, y: list[float], offset: Tensor, rate: Tensor | list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """A user's weights, given the support rows, and the first gradient's norm (0 in closed form)."""
        if self.parts.solver == "gradient":
            return self._gradient_steps(x, y, offset, rate)
        if self.parts.solver != "closed_form":
            raise NotImplementedError(f"write the solver '{self.parts.solver}' in a subclass")
        assert isinstance(rate, Tensor)
        return self._closed_form(x, y, offset, rate), x.new_zeros(())

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
            rows = [torch.autograd.grad(one, point, create_graph=True)[0] for one in slope]
            hessian_FF = torch.stack(rows)
            d = d - torch.linalg.solve(hessian_FF, slope)
        return moved(d)

    def run(self, *, training: bool = True) -> OracleResult:
        """Every user of the batch, in training or in use."""
        losses, outputs, predictions, norms, rates, row_losses = [], [], [], [], [], []
        for b in range(len(self.users)):
            rate = self.rate(b, training=training)
            x, y, offset = self._rows(self.batch.support, b)
            weights, norm = self.adapted(x, y, offset, rate)
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
