import torch

from bench.data.prepare import DIGITS_SCALE, load_digits, prepare
from bench.planning.suite_registry import load as load_suite
from bench.planning.suite_registry import refer
from bench.run.prepare import TRAIN_SAMPLES
from bench.spec.trial import DataSource


def test_the_digits_are_all_there_and_none_is_trained_and_tested_on():
    digits = load_digits()
    images = torch.cat([digits.train.images, digits.test.images])
    labels = torch.cat([digits.train.labels, digits.test.labels])
    assert images.shape == (1797, 3, 8, 8)
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's own
    assert len(digits.test.labels) == 597
    assert images.max() == 16 * DIGITS_SCALE
    assert (images[:, 0] == images[:, 2]).all()


def test_the_suites_mean_and_deviation_are_those_of_its_training_images():
    data = load_suite(refer("digits")).data
    pixels = load_digits().train.images[:, 0].double() / 255
    assert abs(pixels.mean() - data.mean[0]) < 5e-3
    assert abs(pixels.std() - data.std[0]) < 5e-3


def test_a_plan_knows_how_many_digits_there_are_without_reading_them():
    source = DataSource(kind="digits")
    assert prepare(load_suite(refer("digits")).data, source).train_samples == TRAIN_SAMPLES["digits"]
