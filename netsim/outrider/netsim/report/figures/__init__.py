"""One figure a file, each a function from counts to a matplotlib figure, or None where there is nothing to draw."""
