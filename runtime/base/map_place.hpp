// A place in a map that is taken before its key is known: what is then made has its place, and is not lost for want of
// memory.
//
// Thread safety: that of the map.
#pragma once

#include <utility>

namespace pollcore {

template <class Map>
class MapPlace {
public:
    /// Throws std::bad_alloc. What is not placed ends with this.
    explicit MapPlace(Map& map, typename Map::mapped_type value = {}) : map_(map) {
        Map one;
        one.emplace(typename Map::key_type{}, std::move(value));
        node_ = one.extract(one.begin());
    }

    [[nodiscard]] typename Map::mapped_type& value() noexcept { return node_.mapped(); }
    /// Once, by a key that the map has not.
    void take(const typename Map::key_type& key) noexcept {
        node_.key() = key;
        map_.insert(std::move(node_));
    }

private:
    Map& map_;
    typename Map::node_type node_;
};

}  // namespace pollcore
