"""The paper's figures, tables and claims, and the benchmark of LiveADCS.

The scripts use the library from outside: runs are made by `adcs compare`, run folders are read and
drawn with public names of `adcs`.
"""
