"""Source mutations, each with the test that must fail: the strength of the tests themselves.

One module for each area has them as plain data; `test_mutants` applies and runs them.
"""
