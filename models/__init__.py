"""The experiments of the papers: models, data and reference answers, one file each."""
