"""Our entries in the tables of transformers' `Auto` classes, each made when the module that has the table is loaded."""

from __future__ import annotations

from castling.extras import import_extra


def register_config() -> None:
    """`AutoConfig` knows `model_type: castling`."""
    from castling.hub.config import CastlingConfig

    auto = import_extra("transformers.models.auto.configuration_auto", "huggingface")
    auto.AutoConfig.register(CastlingConfig.model_type, CastlingConfig, exist_ok=True)


def register_processor() -> None:
    """`AutoImageProcessor` knows ours."""
    from castling.hub.config import CastlingConfig
    from castling.hub.processor import CastlingImageProcessor

    auto = import_extra("transformers.models.auto.image_processing_auto", "huggingface")
    auto.AutoImageProcessor.register(CastlingConfig, slow_image_processor_class=CastlingImageProcessor, exist_ok=True)


def register_models() -> None:
    """The `AutoModel` of each task knows ours."""
    from castling.hub.config import CastlingConfig
    from castling.hub.models import MODELS

    auto = import_extra("transformers.models.auto.modeling_auto", "huggingface")
    for model in MODELS.values():
        getattr(auto, model.auto_class).register(CastlingConfig, model, exist_ok=True)
