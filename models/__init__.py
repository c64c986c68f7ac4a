"""What a model is: its files, its architecture, its tokenizer and its chat template."""
