"""The page of a run or of a comparison of strategies, and the result file of a run."""
