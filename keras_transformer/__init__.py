"""The encoder-decoder Transformer of "Attention Is All You Need" in Keras 3 and TensorFlow.

Shapes are written with one set of letters throughout:

    B batch      S source length   T target length   D d_model   N heads   H head size (d_k, d_v)
    F d_ff       V vocabulary      K beams           C cache length        L layers
    U units of a recurrent state      E = 2 U width of a recurrent encoder's output
    R = B * K rows of a search's step

`__init__.pyi` lists the public names. They are imported when they are first used, so that
`keras-transformer --help` does not wait for TensorFlow.
"""

from typing import Any

import lazy_loader
import wrapt

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


@wrapt.when_imported("keras")
def _register(keras: Any) -> None:
    """Lets Keras find the classes of saved models; a module is imported when Keras needs it."""
    from keras_transformer.registry import ARCHITECTURES

    objects = keras.saving.get_custom_objects()
    for name in __all__:
        objects.setdefault(f"{__name__}>{name}", wrapt.lazy_import(__name__, name))
    for architecture in ARCHITECTURES.values():
        module, name = architecture.model.split(":")
        model = wrapt.lazy_import(f"{__name__}.{module}", name)
        objects.setdefault(f"{__name__}>{name}", model)
        objects.setdefault(name, model)  # an HDF5 file (`.h5`) names it without the package
