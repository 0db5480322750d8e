// usage: train FOLDER BATCHES.safetensors STEPS
//
// Trains a folder of `export_training_step` in C++, as node.mjs does in Node: prints the losses as JSON, and writes
// the new state to FOLDER/trained.safetensors. It needs the headers and the library of onnxruntime (1.21 or newer):
//   c++ -std=c++17 -O2 train.cpp -I/usr/include/onnxruntime -lonnxruntime -o train
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// What JSON says: a text (of a number or a word as it is written), or members in their order, those of a list without keys.
struct Json {
  std::string text;
  std::vector<std::pair<std::string, Json>> members;

  const Json& operator[](const std::string& key) const {
    for (const auto& [name, value] : members)
      if (name == key) return value;
    throw std::runtime_error("no " + key + " in the description");
  }
  explicit Json(const std::string& source) {
    const char* at = source.c_str();
    *this = Json(at);
  }

 private:
  explicit Json(const char*& at) {
    skip(at);
    if (*at == '"') {
      text = string(at);
    } else if (*at == '{' || *at == '[') {
      const bool is_object = *at == '{';
      const char end = is_object ? '}' : ']';
      skip(++at);
      while (*at != end) {
        if (*at == '\0') throw std::runtime_error("JSON ends early");
        std::string key;
        if (is_object) {
          key = string(at);
          skip(at);
          ++at;  // the colon
        }
        members.emplace_back(key, Json(at));
        skip(at);
        if (*at == ',') skip(++at);
      }
      ++at;
    } else {
      while (*at != '\0' && std::strchr(",]} \t\r\n", *at) == nullptr) text += *at++;
    }
  }
  static void skip(const char*& at) {
    while (*at != '\0' && std::strchr(" \t\r\n", *at) != nullptr) ++at;
  }
  static std::string string(const char*& at) {
    std::string found;
    for (++at; *at != '"'; ++at) {
      if (*at == '\0') throw std::runtime_error("JSON ends early");
      if (*at == '\\') ++at;  // names of tensors have no other escapes than \" and double backslashes
      found += *at;
    }
    ++at;
    return found;
  }
};

struct Type {
  const char* name;
  ONNXTensorElementDataType type;
  size_t size;
};
const Type kTypes[] = {
    {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},    {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"F16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},  {"BF16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2},
    {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},    {"I32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"U8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},     {"BOOL", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
};

using State = std::map<std::string, Ort::Value>;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

State read_state(const std::string& path) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  if (bytes.size() < 8) throw std::runtime_error(path + " is no file of safetensors");
  std::memcpy(&length, bytes.data(), 8);
  if (length > bytes.size() - 8) throw std::runtime_error(path + " is no file of safetensors");
  const Json header(bytes.substr(8, length));
  Ort::AllocatorWithDefaultOptions allocator;
  State state;
  for (const auto& [name, said] : header.members) {
    if (name == "__metadata__") continue;
    const Type* type = nullptr;
    for (const Type& known : kTypes)
      if (said["dtype"].text == known.name) type = &known;
    if (type == nullptr) throw std::runtime_error(name + " is of type " + said["dtype"].text + ", which is not read here");
    std::vector<int64_t> shape;
    size_t size = type->size;
    for (const auto& [key, dim] : said["shape"].members) {
      shape.push_back(std::stoll(dim.text));
      size *= static_cast<size_t>(shape.back());
    }
    const size_t begin = std::stoull(said["data_offsets"].members.at(0).second.text);
    if (begin > bytes.size() - 8 - length || size > bytes.size() - 8 - length - begin)
      throw std::runtime_error(name + " is not whole in " + path);
    Ort::Value value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type->type);
    std::memcpy(value.GetTensorMutableRawData(), bytes.data() + 8 + length + begin, size);
    state.emplace(name, std::move(value));
  }
  return state;
}

void write_state(const State& state, const std::string& path) {
  std::string header = "{", data;
  for (const auto& [name, value] : state) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    std::string shape, shown;
    for (int64_t dim : info.GetShape()) shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    for (char c : name) shown += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
    for (const Type& type : kTypes) {
      if (type.type != info.GetElementType()) continue;
      const size_t begin = data.size();
      data.append(static_cast<const char*>(value.GetTensorRawData()), info.GetElementCount() * type.size);
      header += (header.size() > 1 ? ",\"" : "\"") + shown + "\":{\"dtype\":\"" + type.name + "\",\"shape\":[" + shape +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << data;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// One step: binds the batch and the state, gives the loss, and keeps the new state.
double step(Ort::Session& session, const Json& description, State& state, const std::vector<const Ort::Value*>& batch) {
  Ort::IoBinding binding(session);
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  for (size_t i = 0; i < batch.size(); ++i) binding.BindInput(description["batch"].members.at(i).second.text.c_str(), *batch[i]);
  for (const auto& [name, value] : state) binding.BindInput(name.c_str(), value);
  binding.BindOutput(description["loss"].text.c_str(), memory);
  for (const auto& [output, input] : description["feeds_back"].members) binding.BindOutput(output.c_str(), memory);
  session.Run(Ort::RunOptions{}, binding);
  std::vector<Ort::Value> results = binding.GetOutputValues();
  size_t i = 1;
  for (const auto& [output, input] : description["feeds_back"].members) state.at(input.text) = std::move(results[i++]);
  const bool is_double = results[0].GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  return is_double ? *results[0].GetTensorData<double>() : *results[0].GetTensorData<float>();
}

int main(int count, char** words) try {
  if (count != 4) throw std::runtime_error("usage: train FOLDER BATCHES.safetensors STEPS");
  const std::string folder = words[1];
  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "train");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  Ort::Session session(environment, (folder + "/step.onnx").c_str(), options);
  const Json description(read_file(folder + "/training.json"));
  State state = read_state(folder + "/state.safetensors");
  const State batches = read_state(words[2]);
  size_t rows = 0;
  while (batches.count("input." + std::to_string(rows)) > 0) ++rows;
  for (int i = 0; i < std::atoi(words[3]); ++i) {
    const std::string place = std::to_string(i % rows);
    const double loss = step(session, description, state, {&batches.at("input." + place), &batches.at("target." + place)});
    std::printf("%s%.9g", i == 0 ? "[" : ", ", loss);
  }
  std::printf("]\n");
  write_state(state, folder + "/trained.safetensors");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
