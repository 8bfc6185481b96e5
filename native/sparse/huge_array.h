// A large array of zeros on huge pages where the system has them, for memory that is visited at
// random: with 4 KB pages nearly every visit would miss the address cache too.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace mh {

constexpr std::size_t kHugePage = std::size_t{1} << 21;

// Asks for huge pages under [data, data + bytes); refusal costs speed only.
inline void prefer_huge_pages(void* data, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + 4095) / 4096 * 4096;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / 4096 * 4096;
  if (end > begin && end - begin >= kHugePage) {
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
  explicit HugeArray(std::size_t count) : count_(count) {
    if (count == 0) return;
#if defined(__SANITIZE_ADDRESS__)  // which sees a step beyond the end of the heap's arrays only
    data_ = static_cast<T*>(std::calloc(count, sizeof(T)));
    if (!data_) throw std::bad_alloc();
#else
    // From one border of huge pages to another, where a page is not mostly waste.
    const std::size_t pages = (bytes() + kHugePage - 1) / kHugePage * kHugePage;
    const std::size_t used = bytes() < kHugePage / 4 ? bytes() : pages;
    mapped_ = used + kHugePage;
    void* map = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    mapping_ = map;
    const auto start = (reinterpret_cast<std::uintptr_t>(map) + kHugePage - 1) / kHugePage;
    data_ = reinterpret_cast<T*>(start * kHugePage);
    prefer_huge_pages(data_, used);
#endif
  }
  HugeArray(HugeArray&& other) noexcept { *this = std::move(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~HugeArray() {
#if defined(__SANITIZE_ADDRESS__)
    std::free(data_);
#else
    if (mapping_) munmap(mapping_, mapped_);
#endif
  }

  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace mh
