"""Methods: a method is a rate, an objective and a solver.

rates       where alpha comes from: fixed, per parameter, per user
memory      AT-PAML's bounded memory of users
neighbours  how that memory is searched: exact, kd-tree, HNSW
learner     network, rate, solver and head together: what a method trains; ensembles of them
merge       many trained networks of one layer as one
objectives  the meta-losses: query loss, regularised, pooled
spaces      what a search may change, as ranges of settings
registry    the methods and rate functions, one line each, and those of others
"""
