#include "device/soft/memory_table.hpp"

#include <mutex>

namespace pollcore::soft {

MemoryTable::MemoryTable(std::uint32_t regions_max) : regions_max_(regions_max), entries_(regions_max) {
    free_.reserve(regions_max);
    for (std::uint32_t index = regions_max; index-- > 0;)
        free_.push_back(index);
}

std::uint32_t MemoryTable::add(const MemoryRegion& region, Window* window) {
    if (free_.empty())
        return 0;
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Entry& entry = entries_[index];
    // The variant makes a stale key of this place invalid. The variant is never 0, so no key is 0.
    entry.last_variant = static_cast<std::uint8_t>(entry.last_variant == 255 ? 1 : entry.last_variant + 1);
    entry.region = region;
    entry.window = window;
    const std::uint32_t key = index << kKeyBits | entry.last_variant;
    // Release: pairs with the acquire in find().
    entry.key.store(key, std::memory_order_release);
    return key;
}

void MemoryTable::remove(std::uint32_t key) noexcept {
    // Relaxed: the entry's fields stay valid until retire(). Another engine may have found the entry earlier; the
    // caller waits for it by taking that engine's lock.
    entries_[key >> kKeyBits].key.store(0, std::memory_order_relaxed);
}

void MemoryTable::restore(std::uint32_t key) noexcept {
    entries_[key >> kKeyBits].key.store(key, std::memory_order_release);
}

void MemoryTable::retire(std::uint32_t key) noexcept {
    free_.push_back(key >> kKeyBits);
}

std::uint32_t MemoryTable::windows_of(std::uint32_t key) const noexcept {
    return entries_[key >> kKeyBits].windows.load(std::memory_order_acquire);
}

// ---- windows ----

Window* MemoryTable::lock_window(std::uint32_t key) const noexcept {
    const std::uint32_t index = key >> kKeyBits;
    if (index >= regions_max_)
        return nullptr;
    const Entry& entry = entries_[index];
    // Acquire: pairs with the release in add(); the window was stored before its key.
    if (key == 0 || entry.key.load(std::memory_order_acquire) != key || entry.window == nullptr)
        return nullptr;
    entry.window->lock.lock();
    // Meanwhile a bind may have given the window another key.
    if (entry.key.load(std::memory_order_relaxed) == key)
        return entry.window;
    entry.window->lock.unlock();
    return nullptr;
}

[[gnu::cold, gnu::noinline]] RemoteMemory MemoryTable::find_window(std::uint32_t key, const ibv_qp& qp,
                                                                   std::uint64_t address, std::uint64_t length,
                                                                   int access) const noexcept {
    Window* window = lock_window(key);
    if (window == nullptr)
        return {};
    const MemoryRegion& range = window->range;
    const std::uint64_t offset = address - range.iova;
    if (!window->bound || window->pd != qp.pd || (window->qp != nullptr && window->qp != &qp) ||
        offset > range.length || length > range.length - offset || (range.access & access) != access) {
        window->lock.unlock();
        return {};
    }
    return RemoteMemory(range.host + offset, &window->lock);
}

bool MemoryTable::bind(const WindowBind& bind, const ibv_qp& qp) noexcept {
    Window* window = lock_window(bind.key);
    if (window == nullptr)
        return false;
    const std::lock_guard guard(window->lock, std::adopt_lock);
    constexpr int kChange = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const bool type_2 = window->type == IBV_MW_TYPE_2;
    const int known = kChange | IBV_ACCESS_REMOTE_READ | (type_2 ? IBV_ACCESS_ZERO_BASED : 0);
    if (window->pd != qp.pd || bind.new_key >> kKeyBits != bind.key >> kKeyBits || (bind.access & ~known) != 0 ||
        (type_2 && (window->bound || bind.length == 0))) {
        return false;
    }
    Entry& place = entries_[bind.key >> kKeyBits];
    if (bind.length == 0) {  // type 1: the window gets its new key, and opens no memory from now on
        close(*window);
        place.key.store(bind.new_key, std::memory_order_release);
        return true;
    }
    // A free place holds key 0, so the comparison also fails if nobody has the key.
    const std::uint32_t index = bind.region_key >> kKeyBits;
    if (bind.region_key == 0 || index >= regions_max_)
        return false;
    Entry& of = entries_[index];
    if (of.key.load(std::memory_order_acquire) != bind.region_key || of.window != nullptr)
        return false;
    const MemoryRegion& region = of.region;
    const std::uint64_t offset = bind.address - region.iova;
    if (region.pd != qp.pd || (region.access & IBV_ACCESS_MW_BIND) == 0 ||
        ((bind.access & kChange) != 0 && (region.access & IBV_ACCESS_LOCAL_WRITE) == 0) || offset > region.length ||
        bind.length > region.length - offset) {
        return false;
    }
    close(*window);
    // Release: pairs with the acquire in windows_of().
    of.windows.fetch_add(1, std::memory_order_release);
    const bool zero_based = (bind.access & IBV_ACCESS_ZERO_BASED) != 0;
    window->bound = true;
    window->qp = type_2 ? &qp : nullptr;
    window->region_key = bind.region_key;
    window->range = {region.pd, region.host + offset, zero_based ? 0 : bind.address, bind.length, bind.access};
    place.key.store(bind.new_key, std::memory_order_release);
    return true;
}

bool MemoryTable::invalidate(std::uint32_t key, const ibv_qp& qp) noexcept {
    Window* window = lock_window(key);
    if (window == nullptr)
        return false;
    const std::lock_guard guard(window->lock, std::adopt_lock);
    if (window->type != IBV_MW_TYPE_2 || !window->bound || window->qp != &qp)
        return false;
    close(*window);
    return true;
}

void MemoryTable::unbind(Window& window, const ibv_qp* qp) noexcept {
    const std::lock_guard guard(window.lock);
    if (qp == nullptr || window.qp == qp)
        close(window);
}

void MemoryTable::close(Window& window) noexcept {
    if (!window.bound)
        return;
    window.bound = false;
    window.qp = nullptr;
    window.range = {};
    entries_[window.region_key >> kKeyBits].windows.fetch_sub(1, std::memory_order_release);
}

}  // namespace pollcore::soft
