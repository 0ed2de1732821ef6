"""The interactive figures of the page, as the plain values that Plotly's JavaScript draws. One module for each figure;
only `library`, which reads the JavaScript from it, needs the plotly package."""
