"""The paper's model, in its order: masks, attention, layers, the Transformer, losses, schedules."""
