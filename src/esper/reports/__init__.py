"""What runs came to: statistics, sentences, figures. Nothing here imports torch."""
