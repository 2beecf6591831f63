"""Everything private of pytest, its plugins and CPython that the package touches. No other module touches any.

A module says in which versions all that was seen, an entry what fails without it. ``tests/compat`` has a test for each
entry, which fails when the thing goes away or changes its meaning. What a kit touches of the library that it is made
for stands in the kit.
"""
