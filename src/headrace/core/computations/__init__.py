"""The rules of computations: what a user declares, which slice runs next, what a failure leads
to."""
