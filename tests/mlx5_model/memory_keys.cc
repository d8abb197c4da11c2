#include "memory_keys.hpp"

#include <cerrno>

namespace mlx5_model {

std::optional<std::uint32_t> MemoryKeys::add(Entry entry) {
    if (entries_.size() >= kMost) {
        return std::nullopt;
    }
    // An index is reused as late as possible, so that a stale key stays invalid for a while.
    while (entries_.contains(next_index_)) {
        next_index_ = next_index_ == 0xffff0 ? 16 : next_index_ + 1;
    }
    const std::uint32_t index = next_index_;
    next_index_ = next_index_ == 0xffff0 ? 16 : next_index_ + 1;
    entry.key = index << 8 | next_variant_++;
    return entries_.emplace(index, entry).first->second.key;
}

std::optional<std::uint32_t> MemoryKeys::add_region(const UverbsFile* file, std::uint32_t pd, std::uint64_t start,
                                                    std::uint64_t length, std::uint64_t iova, int access) {
    Entry entry;
    entry.file = file;
    entry.pd = pd;
    entry.start = start;
    entry.length = length;
    entry.iova = iova;
    entry.access = access;
    return add(entry);
}

std::optional<std::uint32_t> MemoryKeys::add_window(const UverbsFile* file, std::uint32_t pd, int type) {
    Entry entry;
    entry.file = file;
    entry.pd = pd;
    entry.window_type = type;
    return add(entry);
}

int MemoryKeys::remove(const UverbsFile* file, std::uint32_t index, bool window) {
    const auto found = entries_.find(index);
    if (found == entries_.end() || found->second.file != file || (found->second.window_type != 0) != window) {
        return EINVAL;
    }
    if (found->second.windows != 0) {
        return EBUSY;
    }
    unbind(found->second);
    entries_.erase(found);
    return 0;
}

void MemoryKeys::remove_all(const UverbsFile* file) {
    for (auto& [index, entry] : entries_) {
        if (entry.file == file) {
            unbind(entry);
        }
    }
    std::erase_if(entries_, [file](const auto& item) { return item.second.file == file; });
}

bool MemoryKeys::uses(std::uint32_t pd) const {
    for (const auto& [index, entry] : entries_) {
        if (entry.pd == pd) {
            return true;
        }
    }
    return false;
}

const MemoryKeys::Entry* MemoryKeys::find(std::uint32_t key) const {
    const auto found = entries_.find(key >> 8);
    return found != entries_.end() && found->second.key == key ? &found->second : nullptr;
}

void* MemoryKeys::place(const Entry& entry, std::uint64_t address, std::uint64_t length) {
    if (address < entry.iova || address - entry.iova > entry.length || length > entry.length - (address - entry.iova)) {
        return nullptr;
    }
    return reinterpret_cast<void*>(entry.start + (address - entry.iova));
}

void* MemoryKeys::local(std::uint32_t key, std::uint64_t address, std::uint64_t length, std::uint32_t pd,
                        int access) const {
    const Entry* entry = find(key);
    if (entry == nullptr || entry->window_type != 0 || entry->pd != pd || (entry->access & access) != access) {
        return nullptr;
    }
    return place(*entry, address, length);
}

void* MemoryKeys::remote(std::uint32_t key, std::uint64_t address, std::uint64_t length, std::uint32_t pd, int access,
                         std::uint32_t qpn) const {
    const Entry* entry = find(key);
    if (entry == nullptr || entry->pd != pd || (entry->access & access) != access) {
        return nullptr;
    }
    if (entry->window_type != 0 && (!entry->bound || (entry->qpn != kAnyQp && entry->qpn != qpn))) {
        return nullptr;
    }
    return place(*entry, address, length);
}

void MemoryKeys::unbind(Entry& window) {
    if (window.window_type == 0 || !window.bound) {
        return;
    }
    window.bound = false;
    if (const auto region = entries_.find(window.region); region != entries_.end()) {
        --region->second.windows;
    }
}

bool MemoryKeys::bind(const BindRequest& request, std::uint32_t pd, std::uint32_t qpn) {
    const auto found = entries_.find(request.key >> 8);
    if (found == entries_.end() || found->second.window_type == 0 || found->second.pd != pd) {
        return false;
    }
    Entry& window = found->second;
    if (request.unbind) {
        if (request.only_of_qp && (!window.bound || window.key != request.key || window.qpn != qpn)) {
            return false;
        }
        unbind(window);
        window.key = (window.key & ~0xffu) | (request.only_of_qp ? window.key & 0xff : request.new_key & 0xff);
        return true;
    }
    if (window.key != request.key || (request.only_if_free && window.bound)) {
        return false;
    }
    const Entry* region = find(request.region_key);
    int needs = IBV_ACCESS_MW_BIND;
    if ((request.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0) {
        needs |= IBV_ACCESS_LOCAL_WRITE;
    }
    if (region == nullptr || region->window_type != 0 || region->pd != pd || (region->access & needs) != needs) {
        return false;
    }
    void* at = place(*region, request.region_address, request.length);
    if (at == nullptr) {
        return false;
    }
    unbind(window);
    window.bound = true;
    window.region = request.region_key >> 8;
    ++entries_.at(window.region).windows;
    window.start = reinterpret_cast<std::uint64_t>(at);
    window.iova = request.start;
    window.length = request.length;
    window.access = request.access;
    window.qpn = request.qpn;
    window.key = (window.key & ~0xffu) | (request.new_key & 0xff);
    return true;
}

bool MemoryKeys::invalidate(std::uint32_t key, std::uint32_t pd, std::uint32_t qpn) {
    const auto found = entries_.find(key >> 8);
    if (found == entries_.end()) {
        return false;
    }
    Entry& window = found->second;
    if (window.window_type != 2 || window.key != key || !window.bound || window.pd != pd ||
        (window.qpn != kAnyQp && window.qpn != qpn)) {
        return false;
    }
    unbind(window);
    return true;
}

}  // namespace mlx5_model
