"""Everything private of pytest, its plugins and CPython that the package touches. No other module touches any.

Each entry says what it touches, in which versions that was seen, and what fails without it. ``tests/compat`` has a test
for each, which fails when the thing goes away or changes its meaning. What a kit touches of the library that it is made
for stands in the kit.
"""
