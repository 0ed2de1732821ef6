"""The interactive figures of the page: Plotly's, as the plain values that its JavaScript draws. A module for each
figure; none needs the plotly package but `library`, which reads the JavaScript out of it."""
