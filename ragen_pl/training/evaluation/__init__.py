"""Evaluations: sets of starts that no run trains on, who plays them, and what the results say.

``sets`` builds them, ``evaluator`` plays them with the policy or a baseline, ``scored_policies``
does so by name, ``results`` and ``success_statistics`` count and compare, ``generalization`` warns
where training looks better.
"""
