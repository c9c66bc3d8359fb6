"""The recurrent model that the Transformer replaces."""

from keras_transformer.rooms import Architecture

ARCHITECTURES = {
    "recurrent": Architecture(
        config="recurrent.config:RecurrentConfig",
        model="recurrent.model:Recurrent",
        step="recurrent.step:RecurrentStep",
    )
}
