// Extreme-label text as Python sees it: a block of lines in, arrays and reasons out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "bindings/bindings.h"
#include "data/label_lines.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mh {
namespace {

class Text {
 public:
  explicit Text(const nb::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Text() { PyBuffer_Release(&view_); }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  const char* data() const { return static_cast<const char*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

NumberRange checked_range(std::int64_t first, std::int64_t count) {
  if (first < 0 || first > 1 || count < 1 || count > INT32_MAX) {
    throw std::invalid_argument("Numbers were asked for from " + std::to_string(first) + " on, " +
                                std::to_string(count) + " of them; expected 0 or 1, and 1 to " +
                                std::to_string(INT32_MAX) + ".");
  }
  return {first, count};
}

LabelLines parse(const nb::object& text, std::int64_t first_line, std::int64_t first_label,
                 std::int64_t label_count, std::int64_t first_feature, std::int64_t feature_count,
                 std::size_t most_notes) {
  const NumberRange labels = checked_range(first_label, label_count);
  const NumberRange features = checked_range(first_feature, feature_count);
  const Text block(text);
  const nb::gil_scoped_release release;
  return parse_label_lines(block.data(), block.size(), first_line, labels, features, most_notes);
}

// A member as an array that keeps its owner alive.
template <typename T, std::vector<T> LabelLines::*member>
nb::object array_of(const nb::handle& self) {
  std::vector<T>& values = nb::cast<LabelLines&>(self).*member;
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}, self));
}

template <std::vector<LineNote> LabelLines::*member>
std::vector<std::pair<std::int64_t, std::string>> notes_of(const LabelLines& self) {
  std::vector<std::pair<std::int64_t, std::string>> notes;
  for (const LineNote& note : self.*member) notes.emplace_back(note.line, note.reason);
  return notes;
}

}  // namespace

void bind_label_lines(nb::module_& m) {
  nb::class_<LabelLines>(m, "LabelLines")
      .def_prop_ro("sample_lines", &array_of<std::int64_t, &LabelLines::sample_lines>)
      .def_prop_ro("label_counts", &array_of<std::int64_t, &LabelLines::label_counts>)
      .def_prop_ro("feature_counts", &array_of<std::int64_t, &LabelLines::feature_counts>)
      .def_prop_ro("labels", &array_of<std::int32_t, &LabelLines::labels>)
      .def_prop_ro("columns", &array_of<std::int32_t, &LabelLines::columns>)
      .def_prop_ro("values", &array_of<float, &LabelLines::values>)
      .def_ro("lines", &LabelLines::lines)
      .def_ro("blank", &LabelLines::blank)
      .def_ro("faults", &LabelLines::faults)
      .def_ro("repeats", &LabelLines::repeats)
      .def_prop_ro("first_faults", &notes_of<&LabelLines::first_faults>)
      .def_prop_ro("first_repeats", &notes_of<&LabelLines::first_repeats>);
  m.def("parse_label_lines", &parse, "text"_a, "first_line"_a, nb::kw_only(), "first_label"_a,
        "label_count"_a, "first_feature"_a, "feature_count"_a, "most_notes"_a);
}

}  // namespace mh
