"""The ensemble: several trained models as one, whose probabilities are the mean of theirs."""

from keras_transformer.rooms import Architecture

ARCHITECTURES = {
    "ensemble": Architecture(
        config="ensemble.config:EnsembleConfig",
        model="ensemble.model:Ensemble",
        step="ensemble.step:EnsembleStep",
    )
}
