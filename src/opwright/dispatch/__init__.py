"""Calling an operator: operands in, the best verified kernel of this machine, the result out."""
