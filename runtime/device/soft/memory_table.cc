#include "device/soft/memory_table.hpp"

namespace pollcore::soft {

MemoryTable::MemoryTable(std::uint32_t regions_max)
    : regions_max_(regions_max), entries_(regions_max) {
    free_.reserve(regions_max);
    for (std::uint32_t index = regions_max; index-- > 0;)
        free_.push_back(index);
}

std::uint32_t MemoryTable::add(const MemoryRegion& region) {
    if (free_.empty())
        return 0;
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[index];
    // The variant makes a stale key of this place fail; 0 is left out so that no key is 0.
    entry.last_variant = static_cast<std::uint8_t>(entry.last_variant == 255 ? 1 : entry.last_variant + 1);
    entry.region = region;
    const std::uint32_t key = index << kKeyBits | entry.last_variant;
    // Release: pairs with the acquire in find().
    entry.key.store(key, std::memory_order_release);
    return key;
}

void MemoryTable::remove(std::uint32_t key) noexcept {
    // Release is not needed for the fields, which stay until retire(); an engine that found the entry
    // earlier is waited for by the caller through that engine's lock.
    entries_[key >> kKeyBits].key.store(0, std::memory_order_relaxed);
}

void MemoryTable::retire(std::uint32_t key) noexcept {
    free_.push_back(key >> kKeyBits);
}

}  // namespace pollcore::soft
