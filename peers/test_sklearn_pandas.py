"""`set_output(transform="pandas")`: vectors in a frame, with the index of the column that the texts came from."""

import pandas
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import bertkit

FRAME = pandas.DataFrame(
    {
        "text": ["The dog chased the cat.", "A horse ran.", "Shares fell on Friday.", "The bank raised its rates."],
        "length": [5, 3, 4, 5],
        "topic": ["animals", "animals", "money", "money"],
    },
    index=[10, 20, 30, 40],
)


def test_vectors_are_a_frame():
    vectorizer = bertkit.BertVectorizer().set_output(transform="pandas")
    vectors = vectorizer.fit(FRAME["text"]).transform(FRAME["text"])
    assert vectors.index.tolist() == [10, 20, 30, 40]
    assert vectors.columns[0] == "bertvectorizer0"
    assert vectors.shape == (4, len(vectorizer.get_feature_names_out()))


def test_a_column_of_texts_beside_others():
    features = make_column_transformer((bertkit.BertVectorizer(), "text"), remainder="passthrough")
    features.set_output(transform="pandas")
    rows = FRAME[["text", "length"]]
    assert features.fit_transform(rows).columns[-1] == "remainder__length"
    fitted = make_pipeline(features, LogisticRegression(max_iter=1000)).fit(rows, FRAME["topic"])
    assert fitted.score(rows, FRAME["topic"]) == 1.0
    estimator = bertkit.BertClassifier(fine_tune=False).fit(FRAME["text"], FRAME["topic"])
    assert estimator.predict(FRAME["text"]).tolist() == FRAME["topic"].tolist()
