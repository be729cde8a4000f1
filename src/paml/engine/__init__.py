"""The engine: the mathematics of adaptation, torch, and NumPy for single users.

products  products of two matrices by the fastest library at hand
ops      products with cheap gradients
rows     weighted sums of a table's rows
inputs   rows of activations, rows that point to items, or all items
layers   a linear layer in three forms: shared, attending to the support set, with each user's own weights
heads    what outputs mean: value, classes, click; loss, gradient, curvature, prediction
choice   the head whose rows are all items: which of them a user chooses; what users are known to have chosen
softmax  chances and expectations over a table of items, with gradients written out
adapt    gradient steps: one step is attention over the support set
solvers  the inner problem of a user: gradient steps, or the closed form
newton   the closed form's arithmetic
descent  the arithmetic of gradient steps on a squared error, for networks of one layer
joint    all members of an ensemble as one problem, for networks of one layer
joint_solvers  the two solvers for all members at once
solo     the same user by user, in NumPy
autoencoder  which items go together: linear autoencoders in closed form
"""
