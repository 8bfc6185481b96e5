// A large array of zeros on huge pages where the system has them, for memory that is visited at
// random: with 4 KB pages nearly every visit would miss the address cache too.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace mh {

// Asks for huge pages under [data, data + bytes); refusal costs speed only.
inline void prefer_huge_pages(void* data, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHuge = std::uintptr_t{1} << 21;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + 4095) / 4096 * 4096;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / 4096 * 4096;
  if (end > begin && end - begin >= kHuge) {
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#else
  (void)data;
  (void)bytes;
#endif
}

// The same for memory that is in use already: its pages are joined now, where the kernel can
// (Linux 6.1).
inline void join_huge_pages(void* data, std::size_t bytes) {
  prefer_huge_pages(data, bytes);
#if defined(__linux__)
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers don't know
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + 4095) / 4096 * 4096;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / 4096 * 4096;
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, kCollapse);
#endif
}

template <typename T>
class HugeArray {
 public:
  HugeArray() = default;
  explicit HugeArray(std::size_t count) : bytes_(count * sizeof(T)) {
    if (bytes_ == 0) return;
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    prefer_huge_pages(data, bytes_);
    data_ = static_cast<T*>(data);
  }
  HugeArray(HugeArray&& other) noexcept { *this = std::move(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HugeArray() {
    if (data_) munmap(data_, bytes_);
  }

  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return bytes_ / sizeof(T); }
  std::size_t bytes() const { return bytes_; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mh
