# docker build -t ablate . && docker run --rm -v "$PWD/mlruns:/work/mlruns" ablate
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# ARG TORCH_INDEX=https://pypi.org/simple   # CUDA in the place of the line above; then docker run --gpus all
WORKDIR /opt/ablate
COPY constraints.txt ./
RUN pip install --no-cache-dir --no-deps --constraint constraints.txt --index-url "$TORCH_INDEX" torch torchvision
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt .
WORKDIR /work
CMD ["ablate", "sweep", "demo", "--workers", "2"]
