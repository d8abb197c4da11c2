namespace sample {

void four() {}

}  // namespace sample
