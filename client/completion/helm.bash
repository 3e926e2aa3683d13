# bash completion for HELM's programs. They are asked for their options themselves, so that this never lags behind.
# Files are offered where a file is meant: for an option's value, or a command's operand, that is called so.
_helm_is_file()
{
    [[ " ${1//[\[\]|,.]/ } " == *" "@(FILE|PATH|DIR)" "* ]]
}
_helm()
{
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local command= operands=FILE rows name value help names=() i
    if [[ ${program##*/} == helm-cli ]]; then
        operands=
        rows=$("$program" --print-options 2>/dev/null | sed -n '/^[a-z]/p')
        for ((i = 1; i < COMP_CWORD; i++)); do
            while IFS=$'\t' read -r name value help; do
                [[ $name == "${COMP_WORDS[i]}" ]] && command=$name operands=$value && break 2
            done <<<"$rows"
        done
        [[ $command == help ]] && command=
    fi
    COMPREPLY=()
    while IFS=$'\t' read -r name value help; do
        if [[ $name == "$previous" && $name == --* && $value != - ]]; then
            if [[ $value == *'|'* && $value != *[A-Z]* ]]; then
                COMPREPLY=($(compgen -W "${value//|/ }" -- "$current"))
            elif _helm_is_file "$value"; then
                COMPREPLY=($(compgen -f -- "$current"))
            fi
            return
        fi
        [[ $name == --* && $current != -* ]] || names+=("$name")
    done < <("$program" $command --print-options 2>/dev/null)
    COMPREPLY=($(compgen -W "${names[*]}" -- "$current"))
    [[ $current != -* ]] && _helm_is_file "$operands" && COMPREPLY+=($(compgen -f -- "$current"))
    return 0
}
complete -o filenames -F _helm helm-cli helmd helm-gateway helm-plan helm-profile helm-inspect helm-quantize helm-mkmodel helm-bench
