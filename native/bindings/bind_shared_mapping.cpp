// Shared memory mapped where the kernel can join its pages: from a border of huge pages on, which
// Python's mmap can't ask for.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "bindings/bindings.h"
#include "sparse/huge_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mh {
namespace {

using SharedBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

// The addresses, reserved with room for a border, and the file mapped over them at the border.
class Mapping {
 public:
  Mapping(int fd, std::size_t bytes) : reserved_bytes_(bytes + kHugePage) {
    reserved_ = mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved_ == MAP_FAILED) fail();
    const auto border = (reinterpret_cast<std::uintptr_t>(reserved_) + kHugePage - 1) / kHugePage;
    data_ = reinterpret_cast<std::uint8_t*>(border * kHugePage);
    constexpr int kFlags = MAP_SHARED | MAP_FIXED;
    if (mmap(data_, bytes, PROT_READ | PROT_WRITE, kFlags, fd, 0) != MAP_FAILED) return;
    const int reason = errno;
    munmap(reserved_, reserved_bytes_);
    errno = reason;
    fail();
  }
  ~Mapping() { munmap(reserved_, reserved_bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::uint8_t* data() const { return data_; }

 private:
  [[noreturn]] static void fail() {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }

  void* reserved_;
  std::size_t reserved_bytes_;
  std::uint8_t* data_;
};

SharedBytes map_shared(int fd, std::size_t bytes) {
  struct stat file;
  if (bytes == 0 || fstat(fd, &file) != 0 || static_cast<std::size_t>(file.st_size) < bytes) {
    throw nb::value_error("A mapping must not be empty or exceed its file.");
  }
  auto mapping = std::make_unique<Mapping>(fd, bytes);
  std::uint8_t* data = mapping->data();
  const nb::capsule owner(mapping.get(), [](void* m) noexcept { delete static_cast<Mapping*>(m); });
  (void)mapping.release();
  return SharedBytes(data, {bytes}, owner);
}

}  // namespace

void bind_shared_mapping(nb::module_& m) {
  m.def("map_shared", &map_shared, "fd"_a, "size_bytes"_a);
}

}  // namespace mh
